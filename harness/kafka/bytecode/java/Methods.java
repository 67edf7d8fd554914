package jbod;

import java.util.ArrayList;
import java.util.List;
import javassist.CtBehavior;
import javassist.CtClass;
import javassist.NotFoundException;
import javassist.bytecode.AccessFlag;

/** Finds the method that a change names. */
final class Methods {
    private Methods() {}

    /**
     * The method of this name that the class itself declares.
     *
     * @param name {@code <init>} for a constructor
     * @param parameters its parameters' types, separated by commas; null if the name is not overloaded
     */
    static CtBehavior find(CtClass of, String name, String parameters) throws NotFoundException {
        List<CtBehavior> named = new ArrayList<>();
        List<String> alike = new ArrayList<>();
        for (CtBehavior each : of.getDeclaredBehaviors()) {
            String its = each.getMethodInfo().getName();
            if (its.equals(name) && (each.getMethodInfo().getAccessFlags() & AccessFlag.BRIDGE) == 0) {
                named.add(each);
            } else if (its.toLowerCase().contains(name.toLowerCase())) {
                alike.add(its);
            }
        }
        if (named.isEmpty()) {
            String hint = alike.isEmpty() ? "" : "; it has " + String.join(", ", alike);
            throw new IllegalArgumentException(of.getName() + " has no method " + name + hint);
        }
        List<String> all = new ArrayList<>();
        for (CtBehavior each : named) {
            String its = parametersOf(each);
            if (its.equals(parameters) || parameters == null && named.size() == 1) {
                if (each.getMethodInfo().getCodeAttribute() == null) {
                    throw new IllegalArgumentException(of.getName() + "." + name + " has no body; name the class that has one");
                }
                return each;
            }
            all.add("(" + its + ")");
        }
        String wanted = parameters == null ? "several methods " + name + ", give parameters" : "no " + name + "(" + parameters + ")";
        throw new IllegalArgumentException(of.getName() + " has " + wanted + "; there are " + String.join(" ", all));
    }

    static String parametersOf(CtBehavior method) throws NotFoundException {
        List<String> types = new ArrayList<>();
        for (CtClass each : method.getParameterTypes()) {
            types.add(each.getName());
        }
        return String.join(",", types);
    }
}
