// Sarama: `driver HOST:PORT,...`; the protocol is in ../serving.py.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type request struct {
	Do          string  `json:"do"`
	Topic       string  `json:"topic"`
	Partition   int32   `json:"partition"`
	Partitions  int32   `json:"partitions"`
	Replicas    int16   `json:"replicas"`
	Offset      int64   `json:"offset"`
	Count       int     `json:"count"`
	TimestampMs int64   `json:"timestamp_ms"`
	Codec       string  `json:"codec"`
	Records     [][]any `json:"records"`
}

type answer map[string]any

const limit = 120 * time.Second

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
	config.Producer.Retry.Max = int(limit / config.Producer.Retry.Backoff)
	return config
}

func produce(r request) answer {
	producer := producers[r.Codec]
	if producer == nil {
		config := newConfig()
		config.Producer.Compression = codecs[r.Codec]
		var err error
		producer, err = sarama.NewSyncProducer(brokers, config)
		check(err)
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
	check(producer.SendMessages(messages))
	return answer{}
}

// fetch assigns the partition; no group is involved.
func fetch(r request) answer {
	partition := asked(func() (sarama.PartitionConsumer, error) {
		return consumer.ConsumePartition(r.Topic, r.Partition, r.Offset)
	})
	defer partition.Close()
	var found [][]any
	for late := time.After(limit); len(found) < r.Count; {
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
			check(fmt.Errorf("%d of %d records", len(found), r.Count))
		}
	}
	return answer{"records": found}
}

// asked asks again while leaders move, and where a connection has broken: unlike records, this is not sent again.
func asked[T any](question func() (T, error)) T {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		found, err := question()
		if err == nil || time.Now().After(deadline) {
			check(err)
			return found
		}
		check(client.RefreshMetadata())
	}
}

func offset(r request, timestamp int64) int64 {
	return asked(func() (int64, error) { return client.GetOffset(r.Topic, r.Partition, timestamp) })
}

func do(r request) answer {
	switch r.Do {
	case "create":
		check(admin.CreateTopic(r.Topic, &sarama.TopicDetail{NumPartitions: r.Partitions, ReplicationFactor: r.Replicas}, false))
	case "delete":
		check(admin.DeleteTopic(r.Topic))
	case "topics":
		names := []string{}
		for name := range asked(admin.ListTopics) {
			names = append(names, name)
		}
		return answer{"topics": names}
	case "delete_records":
		asked(func() (answer, error) {
			return nil, admin.DeleteRecords(r.Topic, map[int32]int64{r.Partition: r.Offset})
		})
	case "produce":
		return produce(r)
	case "fetch":
		return fetch(r)
	case "offset_at":
		return answer{"offset": offset(r, r.TimestampMs)}
	case "bounds":
		return answer{"earliest": offset(r, sarama.OffsetOldest), "latest": offset(r, sarama.OffsetNewest)}
	default:
		check(errors.New("unknown request " + r.Do))
	}
	return answer{}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	brokers = strings.Split(os.Args[1], ",")
	var err error
	admin, err = sarama.NewClusterAdmin(brokers, newConfig())
	check(err)
	client, err = sarama.NewClient(brokers, newConfig())
	check(err)
	consumer, err = sarama.NewConsumerFromClient(client)
	check(err)
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		check(json.Unmarshal(line, &r))
		out, err := json.Marshal(do(r))
		check(err)
		fmt.Println(string(out))
	}
}
