package jbod;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import javassist.CannotCompileException;
import javassist.CtBehavior;
import javassist.bytecode.BadBytecode;
import javassist.expr.ExprEditor;
import javassist.expr.MethodCall;
import javassist.expr.NewExpr;

/** Applies one change of a mutant to a method. */
final class Change {
    private static final String REACHED = "jbod.Mutant.reached();";
    private static final String POINT = "jbod.Holds.at(";

    private Change() {}

    static void apply(CtBehavior method, Map<String, String> change) throws CannotCompileException, BadBytecode {
        if (change.containsKey("body")) {
            method.setBody(counted(change.get("body")));
        } else if (change.containsKey("before")) {
            method.insertBefore(counted(change.get("before")));
        } else if (change.containsKey("after")) {
            method.insertAfter(counted(change.get("after")));
        } else if (change.containsKey("call")) {
            replaceCalls(method, change.get("call"), change.get("nth"), counted(change.get("with")));
        } else if (change.containsKey("branch")) {
            Bytecode.changeBranch(method.getMethodInfo(), Integer.parseInt(change.get("branch")), change.get("to"));
        } else if (change.containsKey("sum")) {
            Bytecode.changeSum(method.getMethodInfo(), Integer.parseInt(change.get("sum")));
        } else {
            Bytecode.changeConstant(method.getMethodInfo(), change);
        }
    }

    /**
     * The source with a call that counts it. Source that counts for itself, as only a branch of it does harm, stays, and
     * so does a point, which does none.
     */
    private static String counted(String source) {
        return source.contains(REACHED) || source.contains(POINT) ? source : "{ " + REACHED + " " + source + " }";
    }

    private static void replaceCalls(CtBehavior method, String wanted, String nth, String with)
            throws CannotCompileException {
        Set<String> others = new LinkedHashSet<>();
        List<String> found = new ArrayList<>();
        method.instrument(new ExprEditor() {
            @Override
            public void edit(MethodCall call) throws CannotCompileException {
                if (isNext(call.getClassName() + "." + call.getMethodName())) {
                    call.replace(with);
                }
            }

            @Override
            public void edit(NewExpr made) throws CannotCompileException {
                if (isNext(made.getClassName() + ".<init>")) {
                    made.replace(with);
                }
            }

            private boolean isNext(String called) {
                if (!called.endsWith("." + wanted) && !called.endsWith("$" + wanted) && !called.equals(wanted)) {
                    others.add(called);
                    return false;
                }
                found.add(called);
                return nth == null || found.size() == Integer.parseInt(nth);
            }
        });
        if (found.isEmpty()) {
            throw new IllegalArgumentException(
                method.getLongName() + " has no call of " + wanted + "; it calls " + String.join(", ", others));
        }
        if (nth != null && found.size() < Integer.parseInt(nth)) {
            throw new IllegalArgumentException(
                method.getLongName() + " has only " + found.size() + " calls of " + wanted + ", and nth is " + nth);
        }
    }
}
