import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * A system's own Java client under load. Each line of input is a command with its arguments; each is answered by one
 * line: "ok" and name=value pairs, or "failed" and a sentence.
 *
 * create TOPIC QUEUES | first TOPIC | send TOPIC IN_FLIGHT BODY_BYTES BATCH WARM_UP_S SECONDS
 * fill TOPIC MESSAGES BODY_BYTES | consume TOPIC MESSAGES TIMEOUT_S | latency TOPIC RATE BODY_BYTES WARM_UP_S SECONDS
 * pace TOPIC RATE BODY_BYTES SECONDS
 */
abstract class LoadDriver {
    private static final int FILL_IN_FLIGHT = 2048;
    private static final int FILL_BATCH = 32;
    private static final int SAMPLES_MAX = 4_000_000;
    private static final int LATE_MESSAGES_S = 30;
    private static final int ANSWER_S = 60;
    private static final int RETRY_MS = 2;
    private static final Random RANDOM = new Random(1);

    /** What is heard of a message that was sent: nothing, or why it failed. */
    interface Answer {
        void heard(Throwable error);
    }

    abstract void create(String topic, int queues) throws Exception;

    /** Send `batch` messages with one call, if the client can; `answer` hears once. */
    abstract void send(String topic, byte[] body, int batch, Answer answer) throws Exception;

    /** Hear every body of a topic, from its first message if `fromFirst`, until closed. Ready when it returns. */
    abstract AutoCloseable consume(String topic, boolean fromFirst, Consumer<byte[]> listener) throws Exception;

    /** How a backlog is made fastest. */
    int fillBatch() {
        return FILL_BATCH;
    }

    final void serve() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ok");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = "ok " + run(line.split(" "));
            } catch (Exception error) {
                answer = "failed " + String.valueOf(error).replaceAll("\\s+", " ");
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0);
    }

    /** The pairs that answer a command. */
    String run(String[] words) throws Exception {
        String topic = words[1];
        switch (words[0]) {
            case "create":
                create(topic, Integer.parseInt(words[2]));
                return "";
            case "first":
                return first(topic);
            case "send":
                return new Sending(topic, number(words[2]), number(words[3]), number(words[4]))
                    .run(seconds(words[5]), seconds(words[6]));
            case "fill":
                return fill(topic, number(words[2]), number(words[3]));
            case "consume":
                return backlog(topic, number(words[2]), number(words[3]));
            case "latency":
                return latency(topic, Double.parseDouble(words[2]), number(words[3]), seconds(words[4]), seconds(words[5]));
            case "pace":
                return pace(topic, Double.parseDouble(words[2]), number(words[3]), seconds(words[4]));
            default:
                throw new IllegalArgumentException("no command is called " + words[0]);
        }
    }

    static int number(String word) {
        return Integer.parseInt(word);
    }

    private static long seconds(String word) {
        return (long) (Double.parseDouble(word) * 1e9);
    }

    private static byte[] body(int bytes) {
        byte[] body = new byte[bytes];
        RANDOM.nextBytes(body);
        return body;
    }

    /** Until one message is acknowledged, by a server that may not run yet. */
    private String first(String topic) throws Exception {
        byte[] body = body(128);
        while (true) {
            CompletableFuture<Void> heard = new CompletableFuture<>();
            try {
                send(topic, body, 1, error -> {
                    if (error == null) {
                        heard.complete(null);
                    } else {
                        heard.completeExceptionally(error);
                    }
                });
                heard.get(ANSWER_S, TimeUnit.SECONDS);
                return "";
            } catch (Exception error) {
                Thread.sleep(RETRY_MS);
            }
        }
    }

    /** So many calls in flight, each timed; the window begins after the warm-up. */
    private final class Sending {
        private final String topic;
        private final byte[] body;
        private final int inFlight;
        private final int batch;
        private final Semaphore window;
        private final AtomicLong acknowledged = new AtomicLong();
        private final AtomicLong counted = new AtomicLong();
        private final AtomicReference<Throwable> failure = new AtomicReference<>();
        private final Samples samples = new Samples();
        private volatile long begin = Long.MAX_VALUE;
        private volatile long end = Long.MAX_VALUE;

        Sending(String topic, int inFlight, int bodyBytes, int batch) {
            this.topic = topic;
            this.body = body(bodyBytes);
            this.inFlight = inFlight;
            this.batch = batch;
            this.window = new Semaphore(inFlight);
        }

        private void one() throws Exception {
            window.acquire();
            long started = System.nanoTime();
            LoadDriver.this.send(topic, body, batch, error -> {
                long now = System.nanoTime();
                if (error != null) {
                    failure.compareAndSet(null, error);
                } else {
                    acknowledged.addAndGet(batch);
                    if (now >= begin && now < end) {
                        counted.addAndGet(batch);
                        samples.add(now - started);
                    }
                }
                window.release();
            });
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
        }

        private void drain() throws Exception {
            if (!window.tryAcquire(inFlight, ANSWER_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("sends were not answered within " + ANSWER_S + " s");
            }
            window.release(inFlight);
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
        }

        String run(long warmUp, long length) throws Exception {
            long started = System.nanoTime();
            begin = started + warmUp;
            end = begin + length;
            long sent = 0;
            while (System.nanoTime() < end) {
                one();
                sent += batch;
            }
            drain();
            if (sent != acknowledged.get()) {
                throw new IllegalStateException(acknowledged.get() + " of " + sent + " acknowledged");
            }
            return "messages=" + counted.get() + " seconds=" + length / 1e9 + " sent=" + sent + samples;
        }

        void count(int messages) throws Exception {
            for (int sent = 0; sent < messages; sent += batch) {
                one();
            }
            drain();
        }
    }

    private String fill(String topic, int messages, int bodyBytes) throws Exception {
        int batch = fillBatch();
        new Sending(topic, FILL_IN_FLIGHT / batch, bodyBytes, batch).count(messages);
        return "messages=" + messages;
    }

    /** A new group reads a backlog; timed from its first message to its last. */
    private String backlog(String topic, int messages, int timeoutS) throws Exception {
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        AtomicInteger count = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        AutoCloseable consumer = consume(topic, true, body -> {
            if (first.get() == 0) {
                first.compareAndSet(0, System.nanoTime());
            }
            if (count.incrementAndGet() == messages) {
                last.set(System.nanoTime());
                done.countDown();
            }
        });
        try {
            if (!done.await(timeoutS, TimeUnit.SECONDS)) {
                throw new IllegalStateException(count.get() + " of " + messages + " received in " + timeoutS + " s");
            }
        } finally {
            consumer.close();
        }
        return "messages=" + count.get() + " seconds=" + (last.get() - first.get()) / 1e9;
    }

    /** From the moment at which a message was due to be sent until a consumer has it (open loop). */
    private String latency(String topic, double rate, int bodyBytes, long warmUp, long length) throws Exception {
        Samples samples = new Samples();
        AtomicInteger received = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        AtomicLong begin = new AtomicLong(Long.MAX_VALUE);
        AutoCloseable consumer = consume(topic, false, body -> {
            long due = ByteBuffer.wrap(body).getLong();
            long now = System.nanoTime();
            if (due >= begin.get()) {
                samples.add(now - due);
            }
            received.incrementAndGet();
        });
        try {
            // Whether the consumer has found its place shows when it receives: what was sent before does not count.
            while (received.get() == 0) {
                deliver(topic, stamped(bodyBytes, 0), failure);
                Thread.sleep(100);
            }
            long started = System.nanoTime();
            long sent = 0;
            long expected = 0;
            begin.set(started + warmUp);
            for (long due = started; due < started + warmUp + length; due = started + (long) (++sent * 1e9 / rate)) {
                for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                expected += due >= begin.get() ? 1 : 0;
                deliver(topic, stamped(bodyBytes, due), failure);
            }
            double took = (System.nanoTime() - started) / 1e9;
            long deadline = System.nanoTime() + LATE_MESSAGES_S * 1_000_000_000L;
            while (samples.size() < expected && System.nanoTime() < deadline) {
                Thread.sleep(10);
            }
            if (samples.size() != expected || failure.get() != null) {
                throw new IllegalStateException(samples.size() + " of " + expected + " received; " + failure.get());
            }
            return "messages=" + expected + " seconds=" + length / 1e9 + " rate=" + sent / took + samples;
        } finally {
            consumer.close();
        }
    }

    /** Sends at a rate, whatever is answered (open loop). */
    private String pace(String topic, double rate, int bodyBytes, long length) throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        byte[] body = body(bodyBytes);
        long started = System.nanoTime();
        long sent = 0;
        for (long due = started; due < started + length; due = started + (long) (++sent * 1e9 / rate)) {
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            deliver(topic, body, failure);
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        return "messages=" + sent;
    }

    private static byte[] stamped(int bytes, long due) {
        byte[] body = new byte[bytes];
        ByteBuffer.wrap(body).putLong(due);
        return body;
    }

    private void deliver(String topic, byte[] body, AtomicReference<Throwable> failure) throws Exception {
        send(topic, body, 1, error -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            }
        });
    }

    /** Nanoseconds of many; beyond a limit they are not kept. */
    static final class Samples {
        private final long[] values = new long[SAMPLES_MAX];
        private final AtomicInteger count = new AtomicInteger();

        void add(long nanoseconds) {
            int place = count.getAndIncrement();
            if (place < SAMPLES_MAX) {
                values[place] = nanoseconds;
            }
        }

        int size() {
            return Math.min(count.get(), SAMPLES_MAX);
        }

        @Override
        public String toString() {
            int size = size();
            if (size == 0) {
                return "";
            }
            Arrays.sort(values, 0, size);
            return " p50_us=" + at(size, 0.5) + " p99_us=" + at(size, 0.99) + " p999_us=" + at(size, 0.999);
        }

        private double at(int size, double share) {
            return values[(int) Math.min(size - 1, Math.ceil(share * size) - 1)] / 1e3;
        }
    }
}
