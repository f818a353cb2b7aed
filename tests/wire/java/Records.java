import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

/**
 * Kafka's own reading and writing of record sets. One record set a line comes in, in hex. For each: what Kafka reads in
 * it, a line a batch ("B ...") and a line a record ("R ..."); then "W" and the same batches as Kafka writes them; or
 * "E" and the exception's name.
 */
public class Records {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            StringBuilder lines = new StringBuilder();
            try {
                MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(line)));
                ByteBufferOutputStream written = new ByteBufferOutputStream(1024);
                for (MutableRecordBatch batch : records.batches()) {
                    batch.ensureValid();
                    describe(batch, lines);
                    write(batch, written);
                }
                ByteBuffer bytes = written.buffer();
                bytes.flip();
                byte[] array = new byte[bytes.remaining()];
                bytes.get(array);
                lines.append("W ").append(HEX.formatHex(array)).append('\n');
            } catch (RuntimeException e) {
                lines.setLength(0);
                lines.append("E ").append(e.getClass().getSimpleName()).append('\n');
            }
            out.print(lines);
            out.println(".");
        }
        out.flush();
    }

    private static void describe(MutableRecordBatch b, StringBuilder lines) {
        lines.append(String.format("B %d %s %s %d %d %d %d %d %d %d %b %b %b%n", b.magic(), b.compressionType().name,
            b.timestampType().name, b.baseOffset(), b.lastOffset(), b.maxTimestamp(), b.partitionLeaderEpoch(),
            b.producerId(), b.producerEpoch(), b.baseSequence(), b.isTransactional(), b.isControlBatch(),
            b.deleteHorizonMs().isPresent()));
        for (Record r : b) {
            lines.append(String.format("R %d %d %s %s", r.offset(), r.timestamp(), hex(r.key()), hex(r.value())));
            for (Header h : r.headers()) {
                lines.append(' ').append(HEX.formatHex(h.key().getBytes(StandardCharsets.UTF_8))).append('=');
                lines.append(h.value() == null ? "null" : HEX.formatHex(h.value()));
            }
            lines.append('\n');
        }
    }

    private static String hex(ByteBuffer bytes) {
        if (bytes == null)
            return "null";
        byte[] array = new byte[bytes.remaining()];
        bytes.duplicate().get(array);
        return "x" + HEX.formatHex(array);
    }

    private static void write(MutableRecordBatch b, ByteBufferOutputStream out) throws IOException {
        long logAppendTime = b.timestampType() == TimestampType.LOG_APPEND_TIME ? b.maxTimestamp() : -1L;
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(out, b.magic(), Compression.of(b.compressionType()).build(),
            b.magic() == 0 ? TimestampType.NO_TIMESTAMP_TYPE : b.timestampType(), b.baseOffset(), logAppendTime,
            b.producerId(), b.producerEpoch(), b.baseSequence(), b.isTransactional(), b.isControlBatch(),
            b.partitionLeaderEpoch(), Integer.MAX_VALUE);
        for (Record r : b) {
            if (b.isControlBatch()) {
                ControlRecordType kind = ControlRecordType.parse(r.key());
                int epoch = EndTransactionMarker.deserialize(r).coordinatorEpoch();
                builder.appendEndTxnMarker(r.timestamp(), new EndTransactionMarker(kind, epoch));
            } else {
                builder.appendUncheckedWithOffset(r.offset(), new SimpleRecord(r.timestamp(), r.key(), r.value(), r.headers()));
            }
        }
        builder.close();
    }
}
