import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * GrpcLoad ENDPOINTS: the official RocketMQ 5 client. Topics, and positions of groups, are somebody else's work.
 *
 * cycles TOPIC GROUP MESSAGES BATCH WORKERS TIMEOUT_S: receive a batch and acknowledge each of its messages
 */
public class GrpcLoad extends LoadDriver {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration AWAIT = Duration.ofSeconds(6);
    private static final Duration INVISIBLE = Duration.ofSeconds(60);
    private final ClientConfiguration configuration;
    private final ConcurrentHashMap<String, Producer> producers = new ConcurrentHashMap<>();

    private GrpcLoad(String endpoints) {
        configuration = ClientConfiguration.newBuilder().setEndpoints(endpoints).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(30)).build();
    }

    public static void main(String[] arguments) throws Exception {
        new GrpcLoad(arguments[0]).serve();
    }

    @Override
    void create(String topic, int queues) {
        throw new UnsupportedOperationException("topics are made by remoting");
    }

    @Override
    AutoCloseable consume(String topic, boolean fromFirst, Consumer<byte[]> listener) {
        throw new UnsupportedOperationException("use cycles");
    }

    private Producer producer(String topic) {
        return producers.computeIfAbsent(topic, name -> {
            try {
                return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(name)
                    .setMaxAttempts(1).build();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
    }

    @Override
    void send(String topic, byte[] body, int batch, Answer answer) {
        producer(topic).sendAsync(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build())
            .whenComplete((receipt, error) -> answer.heard(error));
    }

    @Override
    String run(String[] words) throws Exception {
        if (words[0].equals("cycles")) {
            return new Cycles(words[1], words[2], number(words[3]), number(words[4])).run(number(words[5]), number(words[6]));
        }
        return super.run(words);
    }

    private final class Cycles {
        private final int messages;
        private final int batch;
        private final SimpleConsumer consumer;
        private final AtomicInteger count = new AtomicInteger();
        private final AtomicInteger cycles = new AtomicInteger();
        private final AtomicReference<Throwable> failure = new AtomicReference<>();
        private final Samples samples = new Samples();

        Cycles(String topic, String group, int messages, int batch) throws Exception {
            this.messages = messages;
            this.batch = batch;
            consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(AWAIT)
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
        }

        private void one() throws Exception {
            long started = System.nanoTime();
            List<MessageView> found = consumer.receive(batch, INVISIBLE);
            if (found.isEmpty()) {
                return;
            }
            List<CompletableFuture<Void>> acks = new ArrayList<>(found.size());
            for (MessageView message : found) {
                acks.add(consumer.ackAsync(message));
            }
            CompletableFuture.allOf(acks.toArray(new CompletableFuture[0])).get();
            samples.add(System.nanoTime() - started);
            cycles.incrementAndGet();
            count.addAndGet(found.size());
        }

        String run(int workers, int timeoutS) throws Exception {
            long started = System.nanoTime();
            long deadline = started + timeoutS * 1_000_000_000L;
            List<Thread> threads = new ArrayList<>();
            for (int number = 0; number < workers; number++) {
                Thread thread = new Thread(() -> {
                    try {
                        while (count.get() < messages && failure.get() == null && System.nanoTime() < deadline) {
                            one();
                        }
                    } catch (Throwable error) {
                        failure.compareAndSet(null, error);
                    }
                });
                threads.add(thread);
                thread.start();
            }
            long ended = 0;
            while (ended == 0) {
                if (count.get() >= messages || failure.get() != null || System.nanoTime() >= deadline) {
                    ended = System.nanoTime();
                } else {
                    Thread.sleep(1);
                }
            }
            for (Thread thread : threads) {
                thread.join();
            }
            consumer.close();
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            if (count.get() < messages) {
                throw new IllegalStateException(count.get() + " of " + messages + " acknowledged in " + timeoutS + " s");
            }
            return "messages=" + count.get() + " cycles=" + cycles.get() + " seconds=" + (ended - started) / 1e9 + samples;
        }
    }
}
