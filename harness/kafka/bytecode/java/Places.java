package jbod;

import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import javassist.ClassPool;
import javassist.CtBehavior;
import javassist.CtClass;
import javassist.Modifier;
import javassist.bytecode.AccessFlag;
import javassist.bytecode.CodeIterator;
import javassist.bytecode.ConstPool;
import javassist.bytecode.MethodInfo;
import javassist.bytecode.Opcode;

/**
 * Lists the places of a build that the operators of automatic mutants can change, and makes a jar that notes which of
 * them run.
 *
 * <p>Arguments: the build's class path, the jar to make, the file of the list to write, and the simple names of the
 * classes; their inner classes belong to them. A place is a line of the list, with tabs between: class, method,
 * parameters, line in the source, kind, number or name, and detail. Its number is that of the line, from 0.
 */
public final class Places implements Opcode {
    private static final String[] NOT_OURS = {
        "org.slf4j.", "kafka.utils.Logging", "com.yammer.", "org.apache.kafka.common.metrics.",
        "org.apache.kafka.server.metrics.", "com.typesafe.scalalogging.",
    };
    private static final String LOGS = "trace|debug|info|warn|error|fatal|is(Trace|Debug|Info|Warn|Error)Enabled";
    private static final String NO_PROMISE =
        "toString|hashCode|equals|canEqual|productPrefix|productElement.*|\\$deserializeLambda\\$|<clinit>|"
        + ".*\\$default\\$\\d+|copy|unapply|logIdent.*|loggerName|" + LOGS;

    private final PrintWriter list;
    private int places;

    private Places(PrintWriter list) {
        this.list = list;
    }

    public static void main(String[] arguments) throws Exception {
        Jars jars = new Jars(arguments[0]);
        List<String> wanted = List.of(arguments).subList(3, arguments.length);
        Map<String, CtClass> changed = new LinkedHashMap<>();
        Path jar = Paths.get(arguments[1]);
        try (PrintWriter list = new PrintWriter(Files.newBufferedWriter(Paths.get(arguments[2]), StandardCharsets.UTF_8))) {
            Places places = new Places(list);
            ClassPool pool = jars.pool();
            for (String name : new TreeSet<>(jars.named(wanted))) {
                CtClass each = pool.get(name);
                if (places.visit(each)) {
                    changed.put(name, each);
                }
            }
        }
        Jars.write(jar, "mutant", "places", changed.values(), List.of("Passed"));
        jars.verify(jar, changed.keySet());
    }

    /** List the places of a class, and count them; return whether it has one. */
    private boolean visit(CtClass of) throws Exception {
        int before = places;
        if (of.isInterface()) {
            return false;
        }
        for (CtBehavior method : of.getDeclaredBehaviors()) {
            MethodInfo info = method.getMethodInfo();
            boolean bridge = (info.getAccessFlags() & AccessFlag.BRIDGE) != 0;
            if (info.getCodeAttribute() != null && !bridge && !Modifier.isNative(method.getModifiers())
                && !info.getName().matches(NO_PROMISE)) {
                visit(of, method, info);
            }
        }
        return places > before;
    }

    private void visit(CtClass of, CtBehavior method, MethodInfo info) throws Exception {
        ConstPool pool = info.getConstPool();
        String head = of.getName() + "\t" + info.getName() + "\t" + Methods.parametersOf(method) + "\t";
        List<int[]> inserts = new ArrayList<>();
        CodeIterator code = info.getCodeAttribute().iterator();
        String returned = info.getDescriptor().substring(info.getDescriptor().indexOf(')') + 1);
        if (returned.matches("[ZIJ]|Lscala/Option;|Ljava/util/(Optional|OptionalInt|OptionalLong|List|Set|Map|Collection);")
            && !(info.getName().startsWith("access$") || info.getCodeAttribute().getCodeLength() < 6)) {
            add(inserts, 0, head + info.getLineNumber(0) + "\tresult\t1\t" + returned);
        }
        int branches = 0;
        int sums = 0;
        boolean logs = false;
        Map<String, Integer> calls = new HashMap<>();
        while (code.hasNext()) {
            int at = code.next();
            int opcode = code.byteAt(at);
            String line = head + info.getLineNumber(at) + "\t";
            if (Bytecode.isConditional(opcode)) {
                branches++;
                if (!logs) {
                    add(inserts, at, line + "branch\t" + branches + "\t" + (Bytecode.comparesOrder(opcode) ? "order" : "equality"));
                }
            } else if (Bytecode.isSum(opcode)) {
                add(inserts, at, line + "sum\t" + ++sums + "\t" + (opcode == IADD || opcode == LADD ? "+" : "-"));
            }
            logs = false;
            if (opcode >= INVOKEVIRTUAL && opcode <= INVOKEINTERFACE) {
                int index = code.u16bitAt(at + 1);
                boolean inInterface = pool.getTag(index) == ConstPool.CONST_InterfaceMethodref;
                String in = inInterface ? pool.getInterfaceMethodrefClassName(index) : pool.getMethodrefClassName(index);
                String name = inInterface ? pool.getInterfaceMethodrefName(index) : pool.getMethodrefName(index);
                String type = inInterface ? pool.getInterfaceMethodrefType(index) : pool.getMethodrefType(index);
                String called = in + "." + name;
                logs = name.matches(LOGS);
                if (name.equals("<init>")) {
                    continue;
                }
                int nth = calls.merge(called, 1, Integer::sum);
                if (type.endsWith(")V") && !logs && !startsWithAny(called)) {
                    add(inserts, at, line + "call\t" + nth + "\t" + called);
                }
            }
        }
        // From the last to the first, so that an insertion moves no place that is still to come.
        for (int each = inserts.size() - 1; each >= 0; each--) {
            int[] insert = inserts.get(each);
            info.getCodeAttribute().iterator().insertAt(insert[0], note(pool, insert[1]));
        }
        if (!inserts.isEmpty()) {
            info.getCodeAttribute().computeMaxStack();
        }
    }

    private void add(List<int[]> inserts, int at, String line) {
        inserts.add(new int[] {at, places++});
        list.println(line);
    }

    /** The bytecode of {@code jbod.Passed.at(place)}. */
    private static byte[] note(ConstPool pool, int place) {
        int number = pool.addIntegerInfo(place);
        int method = pool.addMethodrefInfo(pool.addClassInfo("jbod.Passed"), "at", "(I)V");
        return new byte[] {
            (byte) LDC_W, (byte) (number >> 8), (byte) number, (byte) INVOKESTATIC, (byte) (method >> 8), (byte) method,
        };
    }

    private static boolean startsWithAny(String called) {
        for (String each : NOT_OURS) {
            if (called.startsWith(each)) {
                return true;
            }
        }
        return false;
    }
}
