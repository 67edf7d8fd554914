package jbod;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.jar.JarFile;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import javassist.ClassPath;
import javassist.ClassPool;
import javassist.CtClass;

/** The jars of a build, opened once for all changes of it, and a jar of changed classes. */
final class Jars implements ClassPath {
    private final List<URL> urls = new ArrayList<>();
    private final Map<String, JarFile> jarOf = new HashMap<>();

    Jars(String classPath) throws IOException {
        for (String each : classPath.split(File.pathSeparator)) {
            urls.add(new File(each).toURI().toURL());
            JarFile jar = new JarFile(each);
            jar.stream()
                .map(ZipEntry::getName)
                .filter(name -> name.endsWith(".class"))
                .forEach(name -> jarOf.putIfAbsent(name, jar));
        }
    }

    ClassPool pool() {
        ClassPool pool = new ClassPool(null);
        pool.appendClassPath(this);
        pool.appendSystemPath();
        return pool;
    }

    /** The classes of these simple names, with their inner classes. */
    List<String> named(List<String> simpleNames) {
        List<String> found = new ArrayList<>();
        for (String each : jarOf.keySet()) {
            String name = each.substring(0, each.length() - 6).replace('/', '.');
            String simple = name.substring(name.lastIndexOf('.') + 1);
            int inner = simple.indexOf('$');
            if (simpleNames.contains(inner < 0 ? simple : simple.substring(0, inner)) && name.contains("kafka.")) {
                found.add(name);
            }
        }
        return found;
    }

    /**
     * Writes a jar of changed classes, with the classes that they call.
     *
     * @param kind what the jar is, such as {@code mutant}; its entry {@code META-INF/jbod-KIND} has the id
     */
    static void write(Path jar, String kind, String id, Iterable<CtClass> changed, List<String> helpers)
            throws Exception {
        Files.createDirectories(jar.toAbsolutePath().getParent());
        try (ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(jar))) {
            put(out, "META-INF/jbod-" + kind, id.getBytes(StandardCharsets.UTF_8));
            for (String helper : helpers) {
                try (InputStream own = Jars.class.getResourceAsStream("/jbod/" + helper + ".class")) {
                    put(out, "jbod/" + helper + ".class", own.readAllBytes());
                }
            }
            for (CtClass each : changed) {
                put(out, each.getName().replace('.', '/') + ".class", each.toBytecode());
            }
        }
    }

    private static void put(ZipOutputStream to, String name, byte[] content) throws IOException {
        ZipEntry entry = new ZipEntry(name);
        entry.setTime(0);  // the same change makes the same jar
        to.putNextEntry(entry);
        to.write(content);
    }

    /** Lets the JVM verify the changed classes of a jar, which happens before their static code runs. */
    void verify(Path jar, Iterable<String> classes) throws IOException {
        List<URL> all = new ArrayList<>();
        all.add(jar.toUri().toURL());
        all.addAll(urls);
        ClassLoader platform = ClassLoader.getSystemClassLoader().getParent();
        try (URLClassLoader loader = new URLClassLoader(all.toArray(new URL[0]), platform)) {
            for (String name : classes) {
                try {
                    Class.forName(name, true, loader);
                } catch (ExceptionInInitializerError ignored) {
                    // It was verified, and its static code wants a broker around it.
                } catch (ClassNotFoundException error) {
                    throw new NoClassDefFoundError(error.getMessage());
                }
            }
        }
    }

    boolean has(String className) {
        return jarOf.containsKey(path(className));
    }

    /** The class of the same simple name, which may have moved to another package. */
    String hint(String className) {
        String end = "/" + className.substring(className.lastIndexOf('.') + 1) + ".class";
        StringBuilder found = new StringBuilder();
        for (String each : jarOf.keySet()) {
            if (each.endsWith(end)) {
                found.append(found.length() == 0 ? "; it has " : ", ")
                    .append(each.substring(0, each.length() - 6).replace('/', '.'));
            }
        }
        return found.toString();
    }

    @Override
    public InputStream openClassfile(String className) {
        JarFile jar = jarOf.get(path(className));
        try {
            return jar == null ? null : jar.getInputStream(jar.getEntry(path(className)));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public URL find(String className) {
        JarFile jar = jarOf.get(path(className));
        try {
            return jar == null ? null : new URL("jar:" + new File(jar.getName()).toURI() + "!/" + path(className));
        } catch (MalformedURLException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String path(String className) {
        return className.replace('.', '/') + ".class";
    }
}
