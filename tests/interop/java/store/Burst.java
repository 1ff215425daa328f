import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;

/** Sends from several threads until the broker is gone; prints "acknowledged N" on the way. */
class Burst {
    static final int THREADS = 3;
    static final int QUEUES = 4;
    static final int REPORT_EVERY = 50;
    static final int FAILURES_MAX = 5;
    static final long LIMIT_MS = 60_000;

    private final Clients clients;
    private final long seed;
    private final Receipts receipts = new Receipts();
    private final DefaultMQProducer producer;

    Burst(String nameServer, long seed) throws Exception {
        this.clients = new Clients(nameServer);
        this.seed = seed;
        this.producer = clients.started(new DefaultMQProducer("BurstProducer"));
    }

    JSONObject run() throws Exception {
        clients.admin.createAndUpdateTopicConfig(clients.brokerAddress, new TopicConfig("Burst", QUEUES, QUEUES));
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < THREADS; i++) {
            int number = i;
            Thread thread = new Thread(() -> send(number));
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return receipts.toJson();
    }

    /** A few failures in a row mean that the broker is gone; one may be a busy machine. */
    private void send(int thread) {
        Random random = new Random(seed * THREADS + thread);
        long deadline = System.currentTimeMillis() + LIMIT_MS;
        int failures = 0;
        for (int i = 0; failures < FAILURES_MAX && System.currentTimeMillis() < deadline; i++) {
            try {
                if (i % 10 == 9) {
                    List<Message> batch = new ArrayList<>();
                    for (int member = 0; member < 4; member++) {
                        batch.add(message(random, thread + "-" + i + "-" + member));
                    }
                    receipts.addBatch(batch, producer.send(batch));
                } else {
                    Message message = message(random, thread + "-" + i);
                    receipts.add("plain", message, producer.send(message));
                }
                failures = 0;
            } catch (Exception error) {
                failures++;
            }
            if (thread == 0 && i % REPORT_EVERY == 0) {
                System.out.println("acknowledged " + receipts.size());
            }
        }
    }

    private Message message(Random random, String name) {
        byte[] body = new byte[1 + random.nextInt(700)];
        random.nextBytes(body);
        return new Message("Burst", "T" + random.nextInt(3), "burst-" + seed + "-" + name, body);
    }
}
