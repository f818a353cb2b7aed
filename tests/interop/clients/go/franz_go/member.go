package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"drivers/serving"
)

const askEvery = 200 * time.Millisecond

type partitions map[int32]bool

var saying sync.Mutex

func say(what serving.Answer) {
	saying.Lock()
	defer saying.Unlock()
	serving.Say(what)
}

func (owned partitions) change(topic string, changed map[string][]int32, isOwned bool) {
	for _, number := range changed[topic] {
		if isOwned {
			owned[number] = true
		} else {
			delete(owned, number)
		}
	}
	numbers := []int32{}
	for number := range owned {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	say(serving.Answer{"owned": numbers})
}

func sayRead(records []*kgo.Record) {
	values := []int{}
	for _, record := range records {
		value, err := strconv.Atoi(string(record.Value))
		serving.Check(err)
		values = append(values, value)
	}
	if len(values) > 0 {
		say(serving.Answer{"read": values})
	}
}

// sayWhatIsCommitted returns those of the records, whose commit failed, that the group's offset is not beyond.
func sayWhatIsCommitted(client *kgo.Client, group string, unsure []*kgo.Record) []*kgo.Record {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	offsets, err := kadm.NewClient(client).FetchOffsets(ctx, group)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return unsure
	}
	var committed, left []*kgo.Record
	for _, record := range unsure {
		end, isThere := offsets.Lookup(record.Topic, record.Partition)
		if isThere && end.Err == nil && record.Offset < end.At {
			committed = append(committed, record)
		} else {
			left = append(left, record)
		}
	}
	sayRead(committed)
	return left
}

// member is `driver member HOST:PORT,... GROUP TOPIC STRATEGY INSTANCE`; what it prints is said in ../../member.py.
func member(servers, group, topic, strategy, instance string) {
	brokers = strings.Split(servers, ",")
	balancer := map[string]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer()}
	owned := partitions{}
	changes := func(isOwned bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			owned.change(topic, changed, isOwned)
		}
	}
	session, err := time.ParseDuration(os.Getenv("SESSION_MS") + "ms")
	serving.Check(err)
	options := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.Balancers(balancer[strategy]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.OnPartitionsAssigned(changes(true)), kgo.OnPartitionsRevoked(changes(false)), kgo.OnPartitionsLost(changes(false)),
	}
	if instance != "-" {
		options = append(options, kgo.InstanceID(instance))
	}
	client := newClient(options...)
	ended, end := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	unsure := []*kgo.Record{}
	for ended.Err() == nil {
		polling, stop := context.WithCancel(ended)
		if len(unsure) > 0 {
			polling, stop = context.WithTimeout(ended, askEvery)
		}
		records := client.PollFetches(polling).Records()
		stop()
		if len(records) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), serving.Limit)
			if err := client.CommitRecords(ctx, records...); err != nil {
				fmt.Fprintln(os.Stderr, err)
				unsure = append(unsure, records...)
			} else {
				sayRead(records)
			}
			cancel()
		}
		if len(unsure) > 0 {
			unsure = sayWhatIsCommitted(client, group, unsure)
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}
