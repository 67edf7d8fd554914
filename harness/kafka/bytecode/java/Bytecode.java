package jbod;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.IntPredicate;
import javassist.bytecode.BadBytecode;
import javassist.bytecode.CodeAttribute;
import javassist.bytecode.CodeIterator;
import javassist.bytecode.ConstPool;
import javassist.bytecode.MethodInfo;
import javassist.bytecode.Opcode;

/**
 * Changes single instructions. No change adds or removes a jump, so the class's stack maps stay right as they are.
 */
final class Bytecode implements Opcode {
    private Bytecode() {}

    static void changeBranch(MethodInfo method, int number, String to) throws BadBytecode {
        CodeIterator code = method.getCodeAttribute().iterator();
        int at = find(method, Bytecode::isConditional, number, "conditional jumps, and branch");
        int jump = code.byteAt(at);
        if (to.equals("inverted") || to.equals("other-bound")) {
            code.writeByte(to.equals("inverted") ? inverted(jump) : otherBound(jump), at);
            code.insertAt(at, count(method));
            return;
        }
        // Compare 0 with 0 instead of the operands.
        boolean ofOne = jump <= IFLE || jump >= IFNULL;
        byte[] count = count(method);
        byte drop = (byte) (ofOne ? POP : POP2);
        code.writeByte(to.equals("always") ? IFEQ : IFNE, at);
        code.insertAt(at, new byte[] {count[0], count[1], count[2], drop, (byte) ICONST_0});
    }

    /** The place of instruction {@code number} of those that fit, from 1. */
    private static int find(MethodInfo method, IntPredicate fits, int number, String what) throws BadBytecode {
        CodeIterator code = method.getCodeAttribute().iterator();
        int seen = 0;
        while (code.hasNext()) {
            int at = code.next();
            if (fits.test(code.byteAt(at)) && ++seen == number) {
                return at;
            }
        }
        throw new IllegalArgumentException(method.getName() + " has only " + seen + " " + what + " is " + number);
    }

    static boolean isConditional(int opcode) {
        return opcode >= IFEQ && opcode <= IF_ACMPNE || opcode == IFNULL || opcode == IFNONNULL;
    }

    /** Whether a conditional jump compares for less or greater, and so has another bound. */
    static boolean comparesOrder(int jump) {
        return jump >= IFLT && jump <= IFLE || jump >= IF_ICMPLT && jump <= IF_ICMPLE;
    }

    /** Makes sum number {@code number} of the method a difference, or the reverse. */
    static void changeSum(MethodInfo method, int number) throws BadBytecode {
        CodeIterator code = method.getCodeAttribute().iterator();
        int at = find(method, Bytecode::isSum, number, "sums and differences, and sum");
        int opcode = code.byteAt(at);
        code.writeByte(opcode == IADD || opcode == LADD ? opcode + ISUB - IADD : opcode + IADD - ISUB, at);
        code.insertAt(at, count(method));
    }

    static boolean isSum(int opcode) {
        return opcode == IADD || opcode == ISUB || opcode == LADD || opcode == LSUB;
    }

    private static int inverted(int jump) {
        return jump >= IFNULL ? jump ^ 1 : (jump + 1 ^ 1) - 1;
    }

    private static int otherBound(int jump) {
        switch (jump) {
            case IFLT: return IFLE;
            case IFLE: return IFLT;
            case IFGE: return IFGT;
            case IFGT: return IFGE;
            case IF_ICMPLT: return IF_ICMPLE;
            case IF_ICMPLE: return IF_ICMPLT;
            case IF_ICMPGE: return IF_ICMPGT;
            case IF_ICMPGT: return IF_ICMPGE;
            default: throw new IllegalArgumentException("the branch compares for equality, which has no other bound");
        }
    }

    /** {@code constant} and {@code to_constant} have a type before them: {@code n:3}, {@code f:0.5}, {@code s:text}. */
    static void changeConstant(MethodInfo method, Map<String, String> change) throws BadBytecode {
        CodeAttribute attribute = method.getCodeAttribute();
        CodeIterator code = attribute.iterator();
        ConstPool pool = method.getConstPool();
        String wanted = change.get("constant");
        List<int[]> places = new ArrayList<>();
        Set<String> others = new TreeSet<>();
        while (code.hasNext()) {
            int at = code.next();
            Object loaded = loaded(code, at, pool);
            if (loaded != null && text(loaded).equals(wanted)) {
                places.add(new int[] {at, code.lookAhead() - at});
            } else if (loaded != null) {
                others.add(text(loaded).substring(2));
            }
        }
        String nth = change.get("nth");
        if (places.isEmpty() || nth != null && places.size() < Integer.parseInt(nth)) {
            throw new IllegalArgumentException(method.getName() + " loads " + wanted.substring(2) + " " + places.size()
                + " times; it loads also " + String.join(", ", others));
        }
        // From the last to the first, so that an insertion moves no place that is still to come.
        for (int number = places.size(); number > 0; number--) {
            if (nth == null || number == Integer.parseInt(nth)) {
                int at = places.get(number - 1)[0];
                byte[] load = load(pool, loaded(code, at, pool), change.get("to_constant").substring(2));
                for (int each = 0; each < places.get(number - 1)[1]; each++) {
                    code.writeByte(NOP, at + each);
                }
                byte[] count = count(method);
                code.insertAt(at, new byte[] {count[0], count[1], count[2], load[0], load[1], load[2]});
            }
        }
        attribute.computeMaxStack();
    }

    private static byte[] load(ConstPool pool, Object old, String to) {
        int index;
        if (old instanceof Integer) {
            index = pool.addIntegerInfo(Integer.parseInt(to));
        } else if (old instanceof Long) {
            index = pool.addLongInfo(Long.parseLong(to));
        } else if (old instanceof Float) {
            index = pool.addFloatInfo(Float.parseFloat(to));
        } else if (old instanceof Double) {
            index = pool.addDoubleInfo(Double.parseDouble(to));
        } else {
            index = pool.addStringInfo(to);
        }
        int opcode = old instanceof Long || old instanceof Double ? LDC2_W : LDC_W;
        return new byte[] {(byte) opcode, (byte) (index >> 8), (byte) index};
    }

    private static String text(Object constant) {
        String type = constant instanceof String ? "s:" : constant instanceof Float || constant instanceof Double ? "f:" : "n:";
        return type + constant;
    }

    /** The number or string that the instruction loads; null for any other instruction. */
    private static Object loaded(CodeIterator code, int at, ConstPool pool) {
        int opcode = code.byteAt(at);
        if (opcode >= ICONST_M1 && opcode <= ICONST_5) {
            return opcode - ICONST_0;
        }
        switch (opcode) {
            case BIPUSH: return (int) (byte) code.byteAt(at + 1);
            case SIPUSH: return code.s16bitAt(at + 1);
            case LCONST_0: return 0L;
            case LCONST_1: return 1L;
            case FCONST_0: return 0f;
            case FCONST_1: return 1f;
            case FCONST_2: return 2f;
            case DCONST_0: return 0d;
            case DCONST_1: return 1d;
            case LDC: return number(pool, code.byteAt(at + 1));
            case LDC_W:
            case LDC2_W: return number(pool, code.u16bitAt(at + 1));
            default: return null;
        }
    }

    private static Object number(ConstPool pool, int index) {
        switch (pool.getTag(index)) {
            case ConstPool.CONST_Integer:
            case ConstPool.CONST_Long:
            case ConstPool.CONST_Float:
            case ConstPool.CONST_Double:
            case ConstPool.CONST_String: return pool.getLdcValue(index);
            default: return null;
        }
    }

    /** The bytecode that calls {@code Mutant.reached()}; it leaves the stack alone. */
    private static byte[] count(MethodInfo method) {
        ConstPool pool = method.getConstPool();
        int index = pool.addMethodrefInfo(pool.addClassInfo("jbod.Mutant"), "reached", "()V");
        return new byte[] {(byte) INVOKESTATIC, (byte) (index >> 8), (byte) index};
    }
}
