package jbod;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.jar.JarFile;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import javassist.ClassPath;
import javassist.ClassPool;
import javassist.CtBehavior;
import javassist.CtClass;

/**
 * Makes the jars of mutants of one build.
 *
 * <p>Arguments: the build's class path, and a file of lines. A line has words, each encoded as in a URL: {@code mutant
 * ID JAR}, then a line for each of its changes: {@code change key=value …}. Prints a line for each mutant: {@code made
 * ID} or {@code error ID REASON}, in the same encoding.
 */
public final class Mutate {
    private Mutate() {}

    public static void main(String[] arguments) throws IOException {
        Jars jars = new Jars(arguments[0]);
        Map<String[], List<Map<String, String>>> mutants = new LinkedHashMap<>();
        List<Map<String, String>> changes = null;
        for (String line : Files.readAllLines(Paths.get(arguments[1]), StandardCharsets.UTF_8)) {
            String[] words = line.split(" ");
            if (words[0].equals("mutant")) {
                changes = new ArrayList<>();
                mutants.put(new String[] {decode(words[1]), decode(words[2])}, changes);
            } else {
                Map<String, String> change = new HashMap<>();
                for (int at = 1; at < words.length; at++) {
                    String[] pair = words[at].split("=", 2);
                    change.put(pair[0], decode(pair[1]));
                }
                changes.add(change);
            }
        }
        for (Map.Entry<String[], List<Map<String, String>>> each : mutants.entrySet()) {
            String id = each.getKey()[0];
            try {
                make(jars, id, Paths.get(each.getKey()[1]), each.getValue());
                System.out.println("made " + encode(id));
            } catch (Exception | LinkageError error) {
                System.out.println("error " + encode(id) + " " + encode(reason(error)));
            }
        }
    }

    private static void make(Jars jars, String id, Path jar, List<Map<String, String>> changes) throws Exception {
        ClassPool pool = new ClassPool(null);
        pool.appendClassPath(jars);
        pool.appendSystemPath();
        Map<String, CtClass> changed = new LinkedHashMap<>();
        for (Map<String, String> change : changes) {
            String name = change.get("class");
            CtClass of = pool.getOrNull(name);
            if (of == null || !jars.has(name)) {
                throw new IllegalArgumentException("the build has no class " + name + jars.hint(name));
            }
            CtBehavior method = Methods.find(of, change.get("method"), change.get("parameters"));
            Change.apply(method, change);
            changed.put(name, of);
        }
        Files.createDirectories(jar.toAbsolutePath().getParent());
        try (ZipOutputStream out = new ZipOutputStream(Files.newOutputStream(jar))) {
            put(out, "META-INF/jbod-mutant", id.getBytes(StandardCharsets.UTF_8));
            try (InputStream own = Mutate.class.getResourceAsStream("/jbod/Mutant.class")) {
                put(out, "jbod/Mutant.class", own.readAllBytes());
            }
            for (CtClass each : changed.values()) {
                put(out, each.getName().replace('.', '/') + ".class", each.toBytecode());
            }
        }
        verify(jar, jars.urls, changed.keySet());
    }

    /** Let the JVM verify the changed classes, which happens before their static code runs. */
    private static void verify(Path jar, List<URL> build, Iterable<String> classes) throws IOException {
        List<URL> urls = new ArrayList<>();
        urls.add(jar.toUri().toURL());
        urls.addAll(build);
        ClassLoader platform = ClassLoader.getSystemClassLoader().getParent();
        try (URLClassLoader loader = new URLClassLoader(urls.toArray(new URL[0]), platform)) {
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

    private static void put(OutputStream to, String name, byte[] content) throws IOException {
        ZipEntry entry = new ZipEntry(name);
        entry.setTime(0);  // the same change makes the same jar
        ((ZipOutputStream) to).putNextEntry(entry);
        to.write(content);
    }

    private static String reason(Throwable error) {
        String text = error.getMessage() == null ? "" : error.getMessage();
        if (error instanceof IllegalArgumentException) {
            return text;
        }
        String first = text.split("\\R", 2)[0];
        return error.getClass().getSimpleName() + ": " + first.replace("[source error] ", "");
    }

    private static String decode(String word) {
        try {
            return URLDecoder.decode(word, "UTF-8");
        } catch (java.io.UnsupportedEncodingException e) {
            throw new IllegalStateException(e);
        }
    }

    private static String encode(String word) throws IOException {
        return java.net.URLEncoder.encode(word, "UTF-8");
    }

    /** The jars of a build, opened once for all mutants. */
    private static final class Jars implements ClassPath {
        final List<URL> urls = new ArrayList<>();
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
}
