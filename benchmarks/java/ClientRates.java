import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** What the Java client does on this machine: ClientRates NAMESRV TOPIC BODY_BYTES WARM_UP_S SECONDS. */
public class ClientRates {
    private static final int IN_FLIGHT = 256;
    private static final int BATCH = 32;

    private interface Step {
        int run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        byte[] body = new byte[Integer.parseInt(arguments[2])];
        double warmUp = Double.parseDouble(arguments[3]);
        double seconds = Double.parseDouble(arguments[4]);
        DefaultMQProducer producer = new DefaultMQProducer("java-rates");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(30000);
        producer.start();
        measure("one_in_flight", warmUp, seconds, () -> {
            producer.send(new Message(topic, body));
            return 1;
        });
        AtomicLong done = new AtomicLong();
        Semaphore window = new Semaphore(IN_FLIGHT);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.incrementAndGet();
                window.release();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
                System.exit(1);
            }
        };
        measure("many_in_flight", warmUp, seconds, () -> {
            window.acquire();
            producer.send(new Message(topic, body), callback);
            return 1;
        });
        window.acquire(IN_FLIGHT);
        measure("batch", warmUp, seconds, () -> {
            List<Message> messages = new ArrayList<>(BATCH);
            for (int i = 0; i < BATCH; i++) {
                messages.add(new Message(topic, body));
            }
            producer.send(messages);
            return BATCH;
        });
        producer.shutdown();
        System.exit(0);
    }

    private static void measure(String name, double warmUp, double seconds, Step step) throws Exception {
        run(warmUp, step);
        System.out.println("rate " + name + " " + run(seconds, step));
    }

    private static double run(double seconds, Step step) throws Exception {
        long started = System.nanoTime();
        long end = started + (long) (seconds * 1e9);
        long count = 0;
        while (System.nanoTime() < end) {
            count += step.run();
        }
        return count / ((System.nanoTime() - started) / 1e9);
    }
}
