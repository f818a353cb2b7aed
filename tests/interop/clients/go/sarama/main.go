// Sarama: `driver HOST:PORT,...`; the protocol is in ../../serving.py.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"drivers/serving"
)

var (
	codecs = map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	brokers   []string
	admin     sarama.ClusterAdmin
	client    sarama.Client
	consumer  sarama.Consumer
	producers = map[string]sarama.SyncProducer{}
)

func newConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_9_0_0
	config.Metadata.RefreshFrequency = time.Second
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max = int(serving.Limit / config.Producer.Retry.Backoff)
	return config
}

func produce(r serving.Request) serving.Answer {
	producer := producers[r.Codec]
	if producer == nil {
		config := newConfig()
		config.Producer.Compression = codecs[r.Codec]
		var err error
		producer, err = sarama.NewSyncProducer(brokers, config)
		serving.Check(err)
		producers[r.Codec] = producer
	}
	var messages []*sarama.ProducerMessage
	for _, given := range r.Records {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: r.Topic, Partition: int32(given[0].(float64)), Key: sarama.StringEncoder("k"),
			Value: sarama.StringEncoder(given[1].(string)), Timestamp: time.UnixMilli(int64(given[2].(float64))),
			Headers: []sarama.RecordHeader{{Key: []byte("h"), Value: []byte("1")}},
		})
	}
	serving.Check(producer.SendMessages(messages))
	return serving.Answer{}
}

// fetch assigns the partition; no group is involved.
func fetch(r serving.Request) serving.Answer {
	partition := asked(func() (sarama.PartitionConsumer, error) {
		return consumer.ConsumePartition(r.Topic, r.Partition, r.Offset)
	})
	defer partition.Close()
	var found [][]any
	for late := time.After(serving.Limit); len(found) < r.Count; {
		select {
		case message := <-partition.Messages():
			var header any
			for _, h := range message.Headers {
				if string(h.Key) == "h" {
					header = string(h.Value)
				}
			}
			found = append(found, []any{
				message.Offset, string(message.Value), message.Timestamp.UnixMilli(), string(message.Key), header,
			})
		case <-late:
			serving.Check(fmt.Errorf("%d of %d records", len(found), r.Count))
		}
	}
	return serving.Answer{"records": found}
}

// asked asks again while leaders move, and where a connection has broken: unlike records, this is not sent again.
func asked[T any](question func() (T, error)) T {
	for deadline := time.Now().Add(serving.Limit); ; time.Sleep(50 * time.Millisecond) {
		found, err := question()
		if err == nil || time.Now().After(deadline) {
			serving.Check(err)
			return found
		}
		serving.Check(client.RefreshMetadata())
	}
}

func offset(r serving.Request, timestamp int64) int64 {
	return asked(func() (int64, error) { return client.GetOffset(r.Topic, r.Partition, timestamp) })
}

func do(r serving.Request) serving.Answer {
	switch r.Do {
	case "create":
		serving.Check(admin.CreateTopic(r.Topic, &sarama.TopicDetail{NumPartitions: r.Partitions, ReplicationFactor: r.Replicas}, false))
	case "delete":
		serving.Check(admin.DeleteTopic(r.Topic))
	case "topics":
		names := []string{}
		for name := range asked(admin.ListTopics) {
			names = append(names, name)
		}
		return serving.Answer{"topics": names}
	case "delete_records":
		asked(func() (serving.Answer, error) {
			return nil, admin.DeleteRecords(r.Topic, map[int32]int64{r.Partition: r.Offset})
		})
	case "produce":
		return produce(r)
	case "fetch":
		return fetch(r)
	case "offset_at":
		return serving.Answer{"offset": offset(r, r.TimestampMs)}
	case "bounds":
		return serving.Answer{"earliest": offset(r, sarama.OffsetOldest), "latest": offset(r, sarama.OffsetNewest)}
	default:
		serving.Check(errors.New("unknown request " + r.Do))
	}
	return serving.Answer{}
}

func main() {
	brokers = strings.Split(os.Args[1], ",")
	var err error
	admin, err = sarama.NewClusterAdmin(brokers, newConfig())
	serving.Check(err)
	client, err = sarama.NewClient(brokers, newConfig())
	serving.Check(err)
	consumer, err = sarama.NewConsumerFromClient(client)
	serving.Check(err)
	serving.Serve(do)
}
