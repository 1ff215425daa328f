import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Four consumers of one group that start one after the other.
 *
 * <p>Usage: Members NAME_SERVER TOPIC GROUP concurrently|orderly. The topic has eight queues. It prints, in milliseconds,
 * how long the starts took and after which time each member had two queues, then how many of 240 messages each got.
 * The last line is PASS, or FAIL with the reason.
 */
public class Members {
    private static final int MEMBERS = 4;
    private static final int QUEUES = 8;
    private static final int MESSAGES = 240;
    private static final long WAIT_MS = 60_000;

    private final List<DefaultMQPushConsumer> members = new ArrayList<>();
    private final Map<Integer, List<String>> received = new TreeMap<>();
    private final Map<Integer, List<Integer>> byQueue = new ConcurrentHashMap<>();
    private final String topic;

    private Members(String topic) {
        this.topic = topic;
    }

    public static void main(String[] args) throws Exception {
        Members members = new Members(args[1]);
        try {
            members.run(args[0], args[2], args[3].equals("orderly"));
            System.out.println("PASS");
            System.exit(0);
        } catch (IllegalStateException error) {
            System.out.println("FAIL " + error.getMessage());
            System.exit(1);
        }
    }

    private void run(String nameServer, String group, boolean isOrderly) throws Exception {
        long first = System.currentTimeMillis();
        for (int number = 0; number < MEMBERS; number++) {
            members.add(start(nameServer, group, number, isOrderly));
        }
        long started = System.currentTimeMillis();
        await("even", this::isEven);
        System.out.println("STARTED " + (started - first) + " EVEN " + (System.currentTimeMillis() - started));
        DefaultMQProducer producer = new DefaultMQProducer("P_" + group);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        for (int number = 0; number < MESSAGES; number++) {
            Message message = new Message(topic, String.valueOf(number).getBytes());
            producer.send(message, (queues, ignored, place) -> queues.get((int) place % queues.size()), number);
        }
        await("all messages", () -> received.values().stream().mapToInt(List::size).sum() >= MESSAGES);
        StringBuilder counts = new StringBuilder("RECEIVED");
        for (List<String> each : received.values()) {
            counts.append(' ').append(each.size());
        }
        System.out.println(counts);
        for (List<String> each : received.values()) {
            if (each.size() != MESSAGES / MEMBERS) {
                throw new IllegalStateException("not even: " + counts);
            }
        }
        for (List<Integer> each : byQueue.values()) {
            if (isOrderly && !each.equals(each.stream().sorted().toList())) {
                throw new IllegalStateException("out of order: " + each);
            }
        }
    }

    private DefaultMQPushConsumer start(String nameServer, String group, int number, boolean isOrderly) throws Exception {
        List<String> mine = new CopyOnWriteArrayList<>();
        received.put(number, mine);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + "-" + number);
        consumer.subscribe(topic, "*");
        if (isOrderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                note(mine, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                note(mine, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return consumer;
    }

    private void note(List<String> mine, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String body = new String(message.getBody());
            mine.add(body);
            byQueue.computeIfAbsent(message.getQueueId(), id -> new CopyOnWriteArrayList<>()).add(Integer.valueOf(body));
        }
    }

    private boolean isEven() {
        for (DefaultMQPushConsumer member : members) {
            Map<MessageQueue, ?> queues = member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
            if (queues.keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count() != QUEUES / MEMBERS) {
                return false;
            }
        }
        return true;
    }

    private interface Condition {
        boolean holds();
    }

    private static void await(String what, Condition condition) throws InterruptedException {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("not " + what + " after " + WAIT_MS + " ms");
            }
            Thread.sleep(5);
        }
    }
}
