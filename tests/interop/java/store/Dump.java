import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.ConsumeQueueData;
import org.apache.rocketmq.remoting.protocol.body.QueryConsumeQueueResponseBody;

/**
 * Reads what a broker holds, in every way a client can: all queues by pulling, with and without tags and by store time,
 * all keys through the index, all records by their offset ids.
 */
class Dump {
    static final String GROUP = "TOOLS_CONSUMER";
    static final int PULL_MAX = 32;
    static final int UNITS_MAX = 200;
    static final int QUERY_MAX = 64;
    static final int TIMES_MAX = 8;

    private final Clients clients;
    private final DefaultMQPullConsumer plain;
    private final DefaultMQPullConsumer stored;
    private final JSONObject byKey = new JSONObject(true);
    private final JSONArray byId = new JSONArray();

    Dump(String nameServer) throws Exception {
        clients = new Clients(nameServer);
        plain = clients.puller(GROUP, true);
        stored = clients.puller(GROUP, false);
    }

    JSONObject run(String[] ids) throws Exception {
        JSONObject topics = new JSONObject(true);
        for (String topic : new TreeSet<>(clients.admin.fetchAllTopicList().getTopicList())) {
            JSONObject queues = topic(topic);
            if (!queues.isEmpty()) {
                topics.put(topic, queues);
            }
        }
        JSONObject viewed = new JSONObject(true);
        for (String id : ids) {
            MessageExt message = clients.admin.viewMessage("", id);
            viewed.put(id, record(message, null));
        }
        JSONObject root = new JSONObject(true);
        root.put("topics", topics);
        root.put("byKey", byKey);
        root.put("byId", byId);
        root.put("viewed", viewed);
        return root;
    }

    private JSONObject topic(String topic) throws Exception {
        JSONObject queues = new JSONObject(true);
        SortedSet<String> keys = new TreeSet<>();
        SortedSet<String> uniqueKeys = new TreeSet<>();
        Map<MessageQueue, TopicOffset> table;
        try {
            table = clients.queues(topic);
        } catch (MQBrokerException error) {
            return queues; // the name server lists topics that have no queue on this broker
        }
        for (Map.Entry<MessageQueue, TopicOffset> entry : table.entrySet()) {
            if (entry.getValue().getMaxOffset() > 0) {
                JSONObject queue = queue(entry.getKey(), entry.getValue(), keys, uniqueKeys);
                queues.put(String.valueOf(entry.getKey().getQueueId()), queue);
            }
        }
        JSONObject found = new JSONObject(true);
        for (String key : keys) {
            found.put(key, offsets(() -> clients.admin.queryMessage(topic, key, QUERY_MAX, 0, Long.MAX_VALUE)));
        }
        for (String key : uniqueKeys) {
            found.put(key, offsets(
                () -> clients.admin.queryMessageByUniqKey(null, topic, key, QUERY_MAX, 0, Long.MAX_VALUE)));
        }
        if (!found.isEmpty()) {
            byKey.put(topic, found);
        }
        return queues;
    }

    private interface Query {
        QueryResult run() throws Exception;
    }

    /** Empty where the index has lost a key, as it may in a crash. */
    private static JSONArray offsets(Query query) throws Exception {
        SortedSet<Object> offsets = new TreeSet<>();
        QueryResult result;
        try {
            result = query.run();
        } catch (MQClientException error) {
            if (error.getResponseCode() != ResponseCode.NO_MESSAGE) {
                throw error;
            }
            return new JSONArray();
        }
        result.getMessageList().forEach(message -> offsets.add(message.getCommitLogOffset()));
        return new JSONArray(List.copyOf(offsets));
    }

    private JSONObject queue(
        MessageQueue queue, TopicOffset bounds, SortedSet<String> keys, SortedSet<String> uniqueKeys) throws Exception {
        long min = bounds.getMinOffset();
        long max = bounds.getMaxOffset();
        JSONObject out = new JSONObject(true);
        out.put("minOffset", min);
        out.put("maxOffset", max);
        out.put("lastUpdateTimestamp", bounds.getLastUpdateTimestamp());
        out.put("units", units(queue, min, max));
        SortedMap<Long, MessageExt> packed = read(stored, queue, "*", min, max);
        SortedMap<Long, MessageExt> found = read(plain, queue, "*", min, max);
        JSONArray messages = new JSONArray();
        SortedSet<String> tags = new TreeSet<>();
        for (MessageExt message : found.values()) {
            messages.add(record(packed.get(message.getQueueOffset()), message));
            if (message.getTags() != null) {
                tags.add(message.getTags());
            }
            if (message.getKeys() != null) {
                keys.addAll(Arrays.asList(message.getKeys().split(" ")));
            }
            if (message.getProperty("UNIQ_KEY") != null) {
                uniqueKeys.add(message.getProperty("UNIQ_KEY"));
            }
            view(message);
        }
        out.put("messages", messages);
        out.put("byTag", byTag(queue, tags, min, max));
        out.put("byTime", byTime(queue, found));
        return out;
    }

    /** Tag to the queue offsets of its messages: the broker filters by the tag codes in the consume queue. */
    private JSONObject byTag(MessageQueue queue, SortedSet<String> tags, long min, long max) throws Exception {
        JSONObject out = new JSONObject(true);
        for (String tag : tags) {
            out.put(tag, new JSONArray(List.copyOf(read(plain, queue, tag, min, max).keySet())));
        }
        return out;
    }

    /** Pairs of a time and the queue offset that the broker finds for it: around the first and the last messages. */
    private JSONArray byTime(MessageQueue queue, SortedMap<Long, MessageExt> found) throws Exception {
        SortedSet<Long> times = new TreeSet<>();
        for (MessageExt message : found.values()) {
            times.add(message.getStoreTimestamp());
        }
        times.add(times.first() - 1);
        times.add(times.last() + 1);
        JSONArray out = new JSONArray();
        int seen = 0;
        for (long time : times) {
            seen++;
            if (seen <= TIMES_MAX || seen > times.size() - TIMES_MAX) {
                out.add(new JSONArray(List.of(time, clients.admin.searchOffset(queue, time))));
            }
        }
        return out;
    }

    /** Only an id that names this broker can be asked for: the client takes the address out of the id. */
    private void view(MessageExt message) throws Exception {
        if (host(message.getStoreHost()).equals(clients.brokerAddress)) {
            String id = offsetId(message);
            MessageExt viewed = clients.admin.viewMessage(message.getTopic(), id);
            if (viewed.getQueueOffset() == message.getQueueOffset() && Arrays.equals(body(viewed), body(message))) {
                byId.add(id);
            }
        }
    }

    private JSONArray units(MessageQueue queue, long min, long max) throws Exception {
        JSONArray units = new JSONArray();
        for (long position = min; position < max; position = min + units.size()) {
            QueryConsumeQueueResponseBody body = clients.admin.queryConsumeQueue(
                clients.brokerAddress, queue.getTopic(), queue.getQueueId(), position, UNITS_MAX, GROUP);
            if (body.getQueueData() == null || body.getQueueData().isEmpty()) {
                break;
            }
            for (ConsumeQueueData unit : body.getQueueData()) {
                units.add(new JSONArray(List.of(unit.getPhysicOffset(), unit.getPhysicSize(), unit.getTagsCode())));
            }
        }
        return units;
    }

    private static SortedMap<Long, MessageExt> read(
        DefaultMQPullConsumer consumer, MessageQueue queue, String tag, long min, long max) throws Exception {
        SortedMap<Long, MessageExt> found = new TreeMap<>();
        for (long position = min; position < max; ) {
            PullResult result = consumer.pull(queue, tag, position, PULL_MAX);
            if (result.getPullStatus() == PullStatus.FOUND) {
                result.getMsgFoundList().forEach(message -> found.put(message.getQueueOffset(), message));
            }
            if (result.getNextBeginOffset() <= position) {
                throw new IllegalStateException(queue + " does not get beyond " + position + ": " + result);
            }
            position = result.getNextBeginOffset();
        }
        return found;
    }

    /** The fields of the record, of its body as stored and, where it was read so, of the body as sent. */
    private static JSONObject record(MessageExt record, MessageExt sent) throws Exception {
        JSONObject one = new JSONObject(true);
        one.put("topic", record.getTopic());
        one.put("queueId", record.getQueueId());
        one.put("queueOffset", record.getQueueOffset());
        one.put("physicalOffset", record.getCommitLogOffset());
        one.put("storeSize", record.getStoreSize());
        one.put("offsetMsgId", offsetId(record));
        one.put("uniqKey", record.getProperty("UNIQ_KEY"));
        one.put("flag", record.getFlag());
        one.put("sysFlag", record.getSysFlag());
        one.put("bornTimestamp", record.getBornTimestamp());
        one.put("bornHost", host(record.getBornHost()));
        one.put("storeTimestamp", record.getStoreTimestamp());
        one.put("storeHost", host(record.getStoreHost()));
        one.put("reconsumeTimes", record.getReconsumeTimes());
        one.put("preparedTransactionOffset", record.getPreparedTransactionOffset());
        one.put("bodyCrc", record.getBodyCRC());
        one.put("tags", record.getTags());
        one.put("keys", record.getKeys());
        one.put("storedBodySize", body(record).length);
        one.put("storedBodySha256", Clients.sha256(body(record)));
        if (sent != null) {
            one.put("bodySize", body(sent).length);
            one.put("bodySha256", Clients.sha256(body(sent)));
        }
        Map<String, String> properties = new TreeMap<>(record.getProperties());
        properties.remove("MIN_OFFSET"); // these two are added by the client
        properties.remove("MAX_OFFSET");
        one.put("properties", properties);
        return one;
    }

    /** The client has no body for a record whose body is empty. */
    private static byte[] body(MessageExt message) {
        return message.getBody() == null ? new byte[0] : message.getBody();
    }

    private static String offsetId(MessageExt message) throws Exception {
        return MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset());
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }
}
