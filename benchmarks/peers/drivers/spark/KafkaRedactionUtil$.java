package org.apache.spark.kafka010;

/** Stand-in of the token provider's object, for measuring only: there is nothing to hide. */
public final class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    public scala.collection.immutable.Seq<?> redactParams(scala.collection.immutable.Seq<?> settings) {
        return settings;
    }
}
