package jbod;

import java.io.IOException;
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
import javassist.ClassPool;
import javassist.CtBehavior;
import javassist.CtClass;

/**
 * Makes jars of changed classes of one build: mutants, and the points at which threads can be held.
 *
 * <p>Arguments: the build's class path, and a file of lines. A line has words, each encoded as in a URL: {@code KIND ID
 * JAR}, where KIND is {@code mutant} or {@code points}, then a line for each of its changes: {@code change key=value
 * …}. Prints a line for each jar: {@code made ID} or {@code error ID REASON}, in the same encoding.
 */
public final class MakeJars {
    private static final String COUNTED = "mutant";
    private static final Map<String, List<String>> HELPERS =
        Map.of(COUNTED, List.of("Mutant"), "points", List.of("Holds", "Holds$Hold"));

    private MakeJars() {}

    public static void main(String[] arguments) throws IOException {
        Jars jars = new Jars(arguments[0]);
        Map<String[], List<Map<String, String>>> orders = new LinkedHashMap<>();
        List<Map<String, String>> changes = null;
        for (String line : Files.readAllLines(Paths.get(arguments[1]), StandardCharsets.UTF_8)) {
            String[] words = line.split(" ");
            if (HELPERS.containsKey(words[0])) {
                changes = new ArrayList<>();
                orders.put(new String[] {words[0], decode(words[1]), decode(words[2])}, changes);
            } else {
                Map<String, String> change = new HashMap<>();
                for (int at = 1; at < words.length; at++) {
                    String[] pair = words[at].split("=", 2);
                    change.put(pair[0], decode(pair[1]));
                }
                changes.add(change);
            }
        }
        for (Map.Entry<String[], List<Map<String, String>>> each : orders.entrySet()) {
            String id = each.getKey()[1];
            try {
                make(jars, each.getKey()[0], id, Paths.get(each.getKey()[2]), each.getValue());
                System.out.println("made " + encode(id));
            } catch (Exception | LinkageError error) {
                System.out.println("error " + encode(id) + " " + encode(reason(error)));
            }
        }
    }

    private static void make(Jars jars, String kind, String id, Path jar, List<Map<String, String>> changes)
            throws Exception {
        ClassPool pool = jars.pool();
        Map<String, CtClass> changed = new LinkedHashMap<>();
        for (Map<String, String> change : changes) {
            String name = change.get("class");
            CtClass of = pool.getOrNull(name);
            if (of == null || !jars.has(name)) {
                throw new IllegalArgumentException("the build has no class " + name + jars.hint(name));
            }
            CtBehavior method = Methods.find(of, change.get("method"), change.get("parameters"));
            Change.apply(method, change, kind.equals(COUNTED));
            changed.put(name, of);
        }
        Jars.write(jar, kind, id, changed.values(), HELPERS.get(kind));
        jars.verify(jar, changed.keySet());
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
}
