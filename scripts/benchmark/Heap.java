import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;

/** A JVM with a heap of a given size: a map of records. Arguments and ways are those of heap.py. */
final class Heap {
    private static final long STILL_NS = 3_000_000;
    private static final int GAPS = 200;
    private static final int AT_ONCE = 50;

    // Held by the class, or the collector takes what nobody will look at again.
    private static int[][] arrays;

    record Person(long number, String name, double balance, byte[] picture, int[] visits) {}

    public static void main(String[] arguments) throws Exception {
        LongBuffer board;
        try (var file = FileChannel.open(
                Path.of(arguments[0]), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            board = file.map(FileChannel.MapMode.READ_WRITE, 0, file.size())
                    .order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
        }
        var chance = new Random(1);
        long size = Long.parseLong(arguments[1]) << 20;
        // A third of the pages of a warm heap are there twice: long arrays of the same.
        arrays = new int[(int) (size * 38 / 100 >> 20)][1 << 18];
        for (int number = arrays.length / 10; number < arrays.length; number++) {
            Arrays.fill(arrays[number], number % 3 + 1);
        }
        Map<Integer, Person> people = new HashMap<>();
        int count = (int) (size * 62 / 100 / 770);
        for (int number = 0; number < count; number++) {
            people.put(number, person(number, chance));
        }
        board.put(0, 1);
        for (long last = System.nanoTime(); ; ) {
            Thread.sleep(1);
            long now = System.nanoTime();
            if (now - last > STILL_NS) {
                int spot = 8 + 2 * (int) (board.get(4) % GAPS);
                board.put(spot, last).put(spot + 1, now).put(4, board.get(4) + 1);
            }
            last = now;
            board.put(3, board.get(3) + 1);
            for (long left = Math.min(board.get(1) - board.get(2), AT_ONCE); left > 0; left--) {
                int number = chance.nextInt(count);
                people.get(number).visits()[chance.nextInt(64)]++;
                board.put(2, board.get(2) + 1);
            }
        }
    }

    private static Person person(int number, Random chance) {
        byte[] picture = new byte[256];
        // One picture in four is empty, the others are noise.
        if (number % 4 != 0) {
            chance.nextBytes(picture);
        }
        return new Person(number, "person " + number * 7919L, number * 0.37, picture, new int[64]);
    }
}
