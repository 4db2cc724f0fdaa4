import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** A JVM program that speaks as selfcheck.py does: it counts, and memory that must not change is checked at each tick. */
final class Ticks {
    private static final Map<Long, byte[]> HISTORY = new HashMap<>();
    private static final AtomicLong BEATS = new AtomicLong();
    private static String error = "";

    public static void main(String[] arguments) throws Exception {
        Path workdir = Path.of(arguments[0]);
        byte[] block = new byte[4 << 20];
        new Random(7).nextBytes(block);
        int first = Arrays.hashCode(block);
        var pool = Executors.newScheduledThreadPool(4);
        for (int i = 0; i < 4; i++) {
            pool.scheduleAtFixedRate(BEATS::incrementAndGet, 0, 10, TimeUnit.MILLISECONDS);
        }
        for (long counter = 0; counter < 60000 && Files.exists(workdir); counter++) {
            check(counter, block, first);
            publish(workdir, counter, first);
            Thread.sleep(25);
        }
        System.exit(0);
    }

    private static void check(long counter, byte[] block, int first) {
        if (Arrays.hashCode(block) != first) {
            error = "memory that never changes has changed";
        }
        byte[] entry = new byte[1024];
        Arrays.fill(entry, (byte) counter);
        HISTORY.put(counter % 4096, entry);
        long past = counter - Math.min(counter, 4000) / 2;
        if (HISTORY.get(past % 4096)[1023] != (byte) past) {
            error = "the heap lost entry " + past;
        }
    }

    private static void publish(Path workdir, long counter, int digest) throws Exception {
        String text = String.format(
                "{\"pid\": %d, \"counter\": %d, \"ok\": %b, \"error\": \"%s\", \"ready\": %b, \"verified\": %b,"
                        + " \"parts\": [], \"facts\": {\"memory\": \"%08x\"}}",
                ProcessHandle.current().pid(), counter, error.isEmpty(), error, BEATS.get() > 4,
                Files.exists(workdir.resolve("verify")), digest);
        Path beside = workdir.resolve("status.new");
        Files.deleteIfExists(beside);
        Files.createSymbolicLink(beside, Path.of(text));
        Files.move(beside, workdir.resolve("status.json"), StandardCopyOption.ATOMIC_MOVE);
    }
}
