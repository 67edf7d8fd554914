package jbod;

import java.util.Base64;
import java.util.BitSet;

/** What a build calls that notes which of its places run; it lies in the build's jar. */
public final class Passed {
    private static final int MOST = 1 << 16;
    private static final long EACH_MS = 500;
    private static final boolean[] PASSED = new boolean[MOST];

    static {
        Thread thread = new Thread(Passed::printForEver, "jbod-passed");
        thread.setDaemon(true);
        thread.start();
        Runtime.getRuntime().addShutdownHook(new Thread(Passed::print, "jbod-passed-last"));
    }

    private Passed() {}

    /** Notes that a place runs. A plain write: a place whose note is lost in a race is noted when it runs again. */
    public static void at(int place) {
        PASSED[place] = true;
    }

    private static void printForEver() {
        while (true) {
            try {
                Thread.sleep(EACH_MS);
            } catch (InterruptedException e) {
                return;
            }
            print();
        }
    }

    /** Prints the places that ran since the last time, so that a process that is killed loses only the last half second. */
    private static synchronized void print() {
        BitSet passed = new BitSet(MOST);
        for (int place = 0; place < MOST; place++) {
            if (PASSED[place]) {
                PASSED[place] = false;
                passed.set(place);
            }
        }
        if (!passed.isEmpty()) {
            System.err.println("jbod mutant places passed " + Base64.getEncoder().encodeToString(passed.toByteArray()));
        }
    }
}
