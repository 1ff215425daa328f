import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Started stock clients of one name server, and what the commands share. */
class Clients {
    static final long WAIT_MS = 30_000;
    static final int SEND_TIMEOUT_MS = 10_000;

    final String nameServer;
    final DefaultMQAdminExt admin;
    final String brokerName;
    final String brokerAddress;

    Clients(String nameServer) throws Exception {
        this.nameServer = nameServer;
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameServer);
        admin.start();
        brokerName = admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet().iterator().next();
        brokerAddress = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(brokerName).selectBrokerAddr();
    }

    <P extends DefaultMQProducer> P started(P producer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    /** A pull consumer that gives bodies as sent, or as stored when {@code inflate} is false. */
    DefaultMQPullConsumer puller(String group, boolean inflate) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + inflate);
        consumer.setDecodeDecompressBody(inflate);
        consumer.start();
        return consumer;
    }

    MessageQueue queue(String topic, int queueId) {
        return new MessageQueue(topic, brokerName, queueId);
    }

    Map<MessageQueue, TopicOffset> queues(String topic) throws Exception {
        return new TreeMap<>(admin.examineTopicStats(brokerAddress, topic).getOffsetTable());
    }

    long messageCount(String topic) throws Exception {
        return queues(topic).values().stream().mapToLong(TopicOffset::getMaxOffset).sum();
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (!condition.call()) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("waited in vain for " + what);
            }
            Thread.sleep(20);
        }
    }

    static String sha256(byte[] data) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(data));
    }
}
