package jbod;

import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** What the changed code of a mutant calls; it lies in the mutant's jar, beside the changed classes. */
public final class Mutant {
    private static final String ID = id();
    private static final AtomicLong REACHED = new AtomicLong();
    private static final AtomicInteger CALLS = new AtomicInteger();
    private static final Random RANDOM = new Random(40);

    private Mutant() {}

    /** Counts that changed code runs; prints the count at 1, 10, 100 …, so a defect in a hot path floods no log. */
    public static void reached() {
        long count = REACHED.incrementAndGet();
        long power = 1;
        while (power < count) {
            power *= 10;
        }
        if (power == count) {
            System.err.println("jbod mutant " + ID + " reached " + count + " times");
        }
    }

    /** True once in n calls, on average; the same calls in each process. */
    public static boolean oneIn(int n) {
        synchronized (RANDOM) {
            return RANDOM.nextInt(n) == 0;
        }
    }

    /** True for the first n calls in this process. */
    public static boolean first(int n) {
        return CALLS.get() < n && CALLS.getAndIncrement() < n;
    }

    private static String id() {
        try (InputStream in = Mutant.class.getResourceAsStream("/META-INF/jbod-mutant")) {
            return in == null ? "?" : new String(in.readAllBytes(), StandardCharsets.UTF_8).trim();
        } catch (java.io.IOException e) {
            return "?";
        }
    }
}
