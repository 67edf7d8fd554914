package jbod;

import java.io.IOException;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Holds threads at named points of Kafka's code, as the files of a folder say; it has no port.
 *
 * <p>The system property {@code jbod.holds} names the folder, which may appear later. A file {@code NAME.hold} in it is
 * a hold, written as properties: {@code point}, {@code about} (words that the point's subject must contain, such as a
 * partition), {@code thread} (text that the thread's name must contain), {@code caller} (text that a frame of its stack
 * must contain), {@code skip} (threads that pass first), {@code threads} (how many are held) and {@code limit_ms}. The
 * answers lie beside it: {@code NAME.armed} once this process knows it, {@code NAME.K.there} with the stack when thread
 * K is held, {@code NAME.K.over} with the reason and the milliseconds when it goes on. Threads go on when the file or
 * the folder goes, when the limit is over, and when they are interrupted.
 */
public final class Holds {
    private static final long EACH_MS = 10;
    private static volatile Map<String, List<Hold>> byPoint = Collections.emptyMap();

    static {
        String folder = System.getProperty("jbod.holds");
        if (folder != null) {
            Thread thread = new Thread(() -> watch(Paths.get(folder)), "jbod-holds");
            thread.setDaemon(true);
            thread.start();
        }
    }

    private Holds() {}

    /** A point: holds the thread here if a hold is for this point, this thread, and what the point is about. */
    public static void at(String point, Object about) {
        List<Hold> holds = byPoint.get(point);
        if (holds != null) {
            String subject = String.valueOf(about);
            for (Hold each : holds) {
                each.at(subject);
            }
        }
    }

    private static void watch(Path folder) {
        Map<String, Hold> byName = new HashMap<>();
        while (true) {
            try {
                Thread.sleep(EACH_MS);
                look(folder, byName);
            } catch (InterruptedException e) {
                return;
            } catch (IOException e) {
                System.err.println("jbod holds: " + e);
            }
        }
    }

    /** Reads new holds, and releases those whose file is gone. */
    private static void look(Path folder, Map<String, Hold> byName) throws IOException {
        Map<String, Path> found = new HashMap<>();
        try (DirectoryStream<Path> files = Files.newDirectoryStream(folder, "*.hold")) {
            for (Path file : files) {
                String name = file.getFileName().toString();
                found.put(name.substring(0, name.length() - ".hold".length()), file);
            }
        } catch (NoSuchFileException e) {
            // No hold was made yet, or the harness is gone and has removed the folder.
        }
        if (found.keySet().equals(byName.keySet())) {
            return;
        }
        List<Hold> added = new ArrayList<>();
        for (Map.Entry<String, Path> each : found.entrySet()) {
            if (!byName.containsKey(each.getKey())) {
                Hold hold = new Hold(folder, each.getKey(), each.getValue());
                byName.put(each.getKey(), hold);
                added.add(hold);
            }
        }
        byName.entrySet().removeIf(each -> {
            boolean gone = !found.containsKey(each.getKey());
            if (gone) {
                each.getValue().released.countDown();
            }
            return gone;
        });
        Map<String, List<Hold>> now = new HashMap<>();
        byName.values().forEach(each -> now.computeIfAbsent(each.point, point -> new ArrayList<>()).add(each));
        byPoint = now;
        added.forEach(each -> each.tell("armed", each.point + "\n"));
    }

    /** One hold. */
    private static final class Hold {
        final String point;
        final CountDownLatch released = new CountDownLatch(1);
        private final Path folder;
        private final String name;
        private final String[] about;
        private final String thread;
        private final String caller;
        private final int skip;
        private final int threads;
        private final long limitMs;
        private final AtomicInteger came = new AtomicInteger();

        Hold(Path folder, String name, Path file) throws IOException {
            Properties properties = new Properties();
            try (Reader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
                properties.load(reader);
            }
            this.folder = folder;
            this.name = name;
            point = properties.getProperty("point");
            about = properties.getProperty("about", "").split(" ");
            thread = properties.getProperty("thread", "");
            caller = properties.getProperty("caller", "");
            skip = Integer.parseInt(properties.getProperty("skip", "0"));
            threads = Integer.parseInt(properties.getProperty("threads", "1"));
            limitMs = Long.parseLong(properties.getProperty("limit_ms"));
        }

        void at(String subject) {
            if (!Thread.currentThread().getName().contains(thread)) {
                return;
            }
            for (String word : about) {
                if (!subject.contains(word)) {
                    return;
                }
            }
            if (!caller.isEmpty() && !stack(subject).contains(caller)) {
                return;
            }
            int number = came.incrementAndGet() - skip;
            if (number < 1 || number > threads || released.getCount() == 0) {
                return;
            }
            long began = System.nanoTime();
            tell(number + ".there", stack(subject));
            String why;
            try {
                why = released.await(limitMs, TimeUnit.MILLISECONDS) ? "released" : "limit";
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                why = "interrupted";
            }
            tell(number + ".over", why + " " + (System.nanoTime() - began) / 1_000_000 + "\n");
        }

        /** Writes an answer, whole or not at all; the harness may have removed the folder. */
        void tell(String what, String text) {
            Path file = folder.resolve(name + "." + what);
            Path made = folder.resolve(name + "." + what + ".new");
            try {
                Files.write(made, text.getBytes(StandardCharsets.UTF_8));
                Files.move(made, file, StandardCopyOption.ATOMIC_MOVE);
            } catch (IOException e) {
                System.err.println("jbod holds: " + e);
            }
        }

        private static String stack(String subject) {
            StringBuilder text = new StringBuilder();
            text.append(System.currentTimeMillis()).append(' ').append(Thread.currentThread().getName()).append('\n');
            text.append(subject.replace('\n', ' ')).append('\n');
            StackTraceElement[] frames = Thread.currentThread().getStackTrace();
            for (int frame = 4; frame < frames.length; frame++) {
                text.append(frames[frame]).append('\n');
            }
            return text.toString();
        }
    }
}
