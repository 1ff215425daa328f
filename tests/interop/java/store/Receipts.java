import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** What the broker acknowledged, one entry per message; safe to use from several sending threads. */
class Receipts {
    private final JSONArray entries = new JSONArray();

    /** {@code kind} tells the reader where the record lies: only "plain" ones at the queue and offset named. */
    synchronized void add(String kind, Message message, SendResult result) throws Exception {
        entries.add(entry(kind, message, result, result.getOffsetMsgId(), result.getQueueOffset()));
    }

    synchronized void addBatch(List<Message> batch, SendResult result) throws Exception {
        String[] ids = result.getOffsetMsgId().split(",");
        for (int i = 0; i < ids.length; i++) {
            entries.add(entry("batch", batch.get(i), result, ids[i], result.getQueueOffset() + i));
        }
    }

    private static JSONObject entry(String kind, Message message, SendResult result, String id, long queueOffset)
        throws Exception {
        JSONObject entry = new JSONObject(true);
        entry.put("kind", kind);
        entry.put("status", result.getSendStatus().name());
        entry.put("topic", message.getTopic());
        entry.put("queueId", result.getMessageQueue().getQueueId());
        entry.put("queueOffset", queueOffset);
        entry.put("offsetMsgId", id);
        entry.put("msgId", result.getMsgId());
        entry.put("flag", message.getFlag());
        entry.put("bodySize", message.getBody().length);
        entry.put("bodySha256", Clients.sha256(message.getBody()));
        entry.put("properties", new TreeMap<>(message.getProperties()));
        return entry;
    }

    synchronized int size() {
        return entries.size();
    }

    synchronized JSONObject toJson() {
        JSONObject root = new JSONObject(true);
        root.put("acknowledged", entries.clone());
        return root;
    }
}
