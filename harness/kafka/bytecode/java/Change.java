package jbod;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.UnaryOperator;
import javassist.CannotCompileException;
import javassist.CtBehavior;
import javassist.bytecode.BadBytecode;
import javassist.expr.ExprEditor;
import javassist.expr.MethodCall;
import javassist.expr.NewExpr;

/** Applies one change to a method. */
final class Change {
    private static final String REACHED = "jbod.Mutant.reached();";

    private Change() {}

    /** With {@code counts}, source also counts that it was reached: a mutant's does harm, a point's does none. */
    static void apply(CtBehavior method, Map<String, String> change, boolean counts)
            throws CannotCompileException, BadBytecode {
        UnaryOperator<String> source = counts ? Change::counted : UnaryOperator.identity();
        if (change.containsKey("body")) {
            method.setBody(source.apply(change.get("body")));
        } else if (change.containsKey("before")) {
            method.insertBefore(source.apply(change.get("before")));
        } else if (change.containsKey("after")) {
            method.insertAfter(source.apply(change.get("after")));
        } else if (change.containsKey("call")) {
            replaceCalls(method, change.get("call"), change.get("nth"), source.apply(change.get("with")));
        } else if (change.containsKey("branch")) {
            Bytecode.changeBranch(method.getMethodInfo(), Integer.parseInt(change.get("branch")), change.get("to"));
        } else if (change.containsKey("sum")) {
            Bytecode.changeSum(method.getMethodInfo(), Integer.parseInt(change.get("sum")));
        } else {
            Bytecode.changeConstant(method.getMethodInfo(), change);
        }
    }

    /** The source with a call that counts it. Source that counts for itself, as only a branch of it does harm, stays. */
    private static String counted(String source) {
        return source.contains(REACHED) ? source : "{ " + REACHED + " " + source + " }";
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
