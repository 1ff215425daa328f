import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** One name server with one broker, the names used on it, and what all scenarios do. */
final class Session {
    static final long WAIT_MS = 60_000;
    static final int SEND_TIMEOUT_MS = 30_000;
    static final int HEARTBEAT_MS = 1000;
    static final long SHUTDOWN_MS = 10_000;
    static final int QUEUES = 4;

    final String nameServer;
    final DefaultMQAdminExt admin = new DefaultMQAdminExt();
    final String brokerName;
    final String brokerAddress;
    private final String name;
    private final AtomicInteger instances = new AtomicInteger();

    Session(String nameServer, String name) throws Exception {
        this.nameServer = nameServer;
        this.name = name;
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin");
        admin.start();
        var brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable();
        check(brokers.size() == 1, "one broker is expected: " + brokers.keySet());
        brokerName = brokers.keySet().iterator().next();
        brokerAddress = brokers.get(brokerName).selectBrokerAddr();
    }

    String named(String what) {
        return what + "-" + name;
    }

    /** A new topic with {@link #QUEUES} queues that the name server knows. */
    String topic(String what) throws Exception {
        String topic = named(what);
        admin.createAndUpdateTopicConfig(brokerAddress, new TopicConfig(topic, QUEUES, QUEUES, 6));
        await("a route to " + topic, () -> hasRoute(topic));
        return topic;
    }

    boolean hasRoute(String topic) {
        try {
            return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
        } catch (Exception noRoute) {
            return false;
        }
    }

    DefaultMQProducer producer(String what) throws Exception {
        return started(new DefaultMQProducer(named(what)));
    }

    DefaultMQProducer started(DefaultMQProducer producer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer" + instances.incrementAndGet());
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.start();
        return producer;
    }

    /** A push consumer that reads from the beginning, not started. */
    DefaultMQPushConsumer push(String what) {
        return configured(new DefaultMQPushConsumer(named(what)));
    }

    DefaultMQPushConsumer configured(DefaultMQPushConsumer consumer) {
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("push" + instances.incrementAndGet());
        // A client leaves out a heartbeat while it sends another, and the broker waits for what that would have told:
        // a subscription's new version, or the group itself after a restart. The next one must not be 30 s away.
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        // Else a client that leaves tells how far it is before its last listener has returned.
        consumer.setAwaitTerminationMillisWhenShutdown(SHUTDOWN_MS);
        return consumer;
    }

    /** A lite pull consumer that reads from the beginning and commits when told, not started. */
    DefaultLitePullConsumer litePull(String what) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(named(what));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("pull" + instances.incrementAndGet());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullThreadNums(2);
        return consumer;
    }

    long maxOffset(MessageQueue queue) throws Exception {
        return admin.maxOffset(queue);
    }

    long messageCount(String topic) throws Exception {
        long count = 0;
        for (var offsets : admin.examineTopicStats(topic).getOffsetTable().values()) {
            count += offsets.getMaxOffset() - offsets.getMinOffset();
        }
        return count;
    }

    /** How many messages of a topic a group has not committed. */
    long lag(String group, String topic) throws Exception {
        long lag = 0;
        for (var entry : admin.examineConsumeStats(group).getOffsetTable().entrySet()) {
            if (entry.getKey().getTopic().equals(topic)) {
                lag += entry.getValue().getBrokerOffset() - entry.getValue().getConsumerOffset();
            }
        }
        return lag;
    }

    /** A client that leaves tells its broker how far it is, and does not wait for the answer. */
    void awaitNoLag(String group, String topic) throws Exception {
        await("offsets of " + group + " in " + topic, () -> lag(group, topic) == 0);
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    static SendResult sent(SendResult result) {
        check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
        return result;
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalStateException(otherwise);
        }
    }

    static void equal(Object actual, Object expected, String what) {
        check(Objects.equals(actual, expected), what + ": " + actual + " instead of " + expected);
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        await(() -> what, WAIT_MS, condition);
    }

    static void await(Supplier<String> what, long limitMs, Callable<Boolean> condition) throws Exception {
        long deadline = System.currentTimeMillis() + limitMs;
        while (!condition.call()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("waited in vain for " + what.get());
            }
            Thread.sleep(20);
        }
    }
}
