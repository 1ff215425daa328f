import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Questions: a message by its key or ids, a queue's ends, the offset at a time. */
final class Queries {
    static final int COUNT = 10;

    private final Session session;

    Queries(Session session) {
        this.session = session;
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("query_by_key_and_id", this::byKeyAndId);
        scenarios.put("query_offsets", this::offsets);
    }

    private void byKeyAndId() throws Exception {
        String topic = session.topic("Query");
        DefaultMQProducer producer = session.producer("Query");
        long begin = System.currentTimeMillis() - 1000;
        Map<String, SendResult> sent = new TreeMap<>();
        for (int i = 0; i < COUNT; i++) {
            Message message = Session.message(topic, "A", "query-" + i);
            message.setKeys(List.of("one-" + i, "all"));
            sent.put("query-" + i, Session.sent(producer.send(message)));
        }
        long end = System.currentTimeMillis() + 60_000;
        Session.await("the index", () -> found(producer, topic, "all", begin, end).size() == COUNT);
        for (var entry : sent.entrySet()) {
            String number = entry.getKey().substring(6);
            List<MessageExt> hits = found(producer, topic, "one-" + number, begin, end);
            Session.equal(hits.size(), 1, "hits");
            Session.equal(Received.body(hits.get(0)), entry.getKey(), "found by key");
            SendResult result = entry.getValue();
            for (String id : List.of(result.getOffsetMsgId(), result.getMsgId())) {
                MessageExt message = session.admin.viewMessage(topic, id);
                Session.equal(Received.body(message), entry.getKey(), "found by " + id);
                Session.equal(message.getQueueOffset(), result.getQueueOffset(), "queue offset");
            }
        }
        Session.equal(found(producer, topic, "all", begin - 60_000, begin), List.of(), "found before they were sent");
    }

    private static List<MessageExt> found(
        DefaultMQProducer producer, String topic, String key, long begin, long end) throws Exception {
        try {
            QueryResult result = producer.queryMessage(topic, key, 32, begin, end);
            return result.getMessageList();
        } catch (org.apache.rocketmq.client.exception.MQClientException none) {
            return List.of();
        }
    }

    private void offsets() throws Exception {
        String topic = session.topic("Offsets");
        DefaultMQProducer producer = session.producer("Offsets");
        MessageQueue queue = new MessageQueue(topic, session.brokerName, 2);
        Session.equal(session.admin.maxOffset(queue), 0L, "end of an empty queue");
        List<MessageExt> messages = new ArrayList<>();
        for (int i = 0; i < COUNT; i++) {
            SendResult result = Session.sent(producer.send(Session.message(topic, "A", "offset-" + i), queue));
            messages.add(session.admin.viewMessage(topic, result.getOffsetMsgId()));
            Thread.sleep(2);
        }
        Session.equal(session.admin.minOffset(queue), 0L, "beginning");
        Session.equal(session.admin.maxOffset(queue), (long) COUNT, "end");
        Session.equal(
            session.admin.earliestMsgStoreTime(queue), messages.get(0).getStoreTimestamp(), "time of the first");
        for (int i = 0; i < COUNT; i++) {
            Session.equal(
                session.admin.searchOffset(queue, messages.get(i).getStoreTimestamp()), (long) i, "offset at a time");
        }
        Session.equal(session.admin.searchOffset(queue, 0), 0L, "offset before the first");
        Session.equal(
            session.admin.searchOffset(queue, System.currentTimeMillis() + 60_000), (long) COUNT, "after the last");
        try {
            session.admin.viewMessage(topic, "7F000001" + "00002A9F" + "7FFFFFFFFFFFFFF0");
            throw new IllegalStateException("a message at an impossible place");
        } catch (Exception expected) {
            Session.check(!(expected instanceof IllegalStateException), expected.getMessage());
        }
    }
}
