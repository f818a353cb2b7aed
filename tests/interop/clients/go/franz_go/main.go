// franz-go: `driver HOST:PORT,...`; the protocol is in ../../serving.py. A member of a group is in member.go.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"drivers/serving"
)

var (
	codecs = map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	brokers   []string
	admin     *kadm.Client
	consumer  *kgo.Client
	producers = map[string]*kgo.Client{}
)

func newClient(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append(options, kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(50*time.Millisecond))...)
	serving.Check(err)
	return client
}

// produce is idempotent with acks=all, franz-go's default.
func produce(ctx context.Context, r serving.Request) serving.Answer {
	producer := producers[r.Codec]
	if producer == nil {
		producer = newClient(
			kgo.ProducerBatchCompression(codecs[r.Codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
		producers[r.Codec] = producer
	}
	var records []*kgo.Record
	for _, given := range r.Records {
		records = append(records, &kgo.Record{
			Topic: r.Topic, Partition: int32(given[0].(float64)), Key: []byte("k"), Value: []byte(given[1].(string)),
			Timestamp: time.UnixMilli(int64(given[2].(float64))),
			Headers:   []kgo.RecordHeader{{Key: "h", Value: []byte("1")}},
		})
	}
	serving.Check(producer.ProduceSync(ctx, records...).FirstErr())
	return serving.Answer{}
}

// fetch assigns the partition; no group is involved.
func fetch(ctx context.Context, r serving.Request) serving.Answer {
	consumer.AddConsumePartitions(
		map[string]map[int32]kgo.Offset{r.Topic: {r.Partition: kgo.NewOffset().At(r.Offset)}})
	defer consumer.RemoveConsumePartitions(map[string][]int32{r.Topic: {r.Partition}})
	var found [][]any
	for len(found) < r.Count {
		fetches := consumer.PollRecords(ctx, r.Count-len(found))
		serving.Check(ctx.Err())
		for _, record := range fetches.Records() {
			var header any
			for _, h := range record.Headers {
				if h.Key == "h" {
					header = string(h.Value)
				}
			}
			found = append(found, []any{
				record.Offset, string(record.Value), record.Timestamp.UnixMilli(), string(record.Key), header,
			})
		}
	}
	return serving.Answer{"records": found}
}

func offset(listed kadm.ListedOffsets, err error, r serving.Request) int64 {
	serving.Check(err)
	found, ok := listed.Lookup(r.Topic, r.Partition)
	if !ok {
		serving.Check(fmt.Errorf("%s-%d is not listed", r.Topic, r.Partition))
	}
	serving.Check(found.Err)
	return found.Offset
}

func do(ctx context.Context, r serving.Request) serving.Answer {
	switch r.Do {
	case "create":
		_, err := admin.CreateTopic(ctx, r.Partitions, r.Replicas, nil, r.Topic)
		serving.Check(err)
	case "delete":
		deleted, err := admin.DeleteTopics(ctx, r.Topic)
		serving.Check(err)
		serving.Check(deleted[r.Topic].Err)
	case "topics":
		topics, err := admin.ListTopics(ctx)
		serving.Check(err)
		return serving.Answer{"topics": topics.Names()}
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.AddOffset(r.Topic, r.Partition, r.Offset, -1)
		deleted, err := admin.DeleteRecords(ctx, offsets)
		serving.Check(err)
		deleted.Each(func(d kadm.DeleteRecordsResponse) { serving.Check(d.Err) })
	case "produce":
		return produce(ctx, r)
	case "fetch":
		return fetch(ctx, r)
	case "offset_at":
		listed, err := admin.ListOffsetsAfterMilli(ctx, r.TimestampMs, r.Topic)
		return serving.Answer{"offset": offset(listed, err, r)}
	case "bounds":
		earliest, errEarliest := admin.ListStartOffsets(ctx, r.Topic)
		latest, errLatest := admin.ListEndOffsets(ctx, r.Topic)
		return serving.Answer{"earliest": offset(earliest, errEarliest, r), "latest": offset(latest, errLatest, r)}
	default:
		serving.Check(fmt.Errorf("unknown request %q", r.Do))
	}
	return serving.Answer{}
}

func main() {
	if os.Args[1] == "member" {
		member(os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6])
		return
	}
	brokers = strings.Split(os.Args[1], ",")
	admin = kadm.NewClient(newClient())
	consumer = newClient()
	serving.Serve(func(r serving.Request) serving.Answer {
		ctx, cancel := context.WithTimeout(context.Background(), serving.Limit)
		defer cancel()
		return do(ctx, r)
	})
}
