package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type partitions map[int32]bool

var saying sync.Mutex

func say(what answer) {
	saying.Lock()
	defer saying.Unlock()
	out, err := json.Marshal(what)
	check(err)
	fmt.Println(string(out))
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
	say(answer{"owned": numbers})
}

// member is `driver member HOST:PORT,... GROUP TOPIC STRATEGY INSTANCE`; what it prints is said in ../member.py.
func member(servers, group, topic, strategy, instance string) {
	brokers = strings.Split(servers, ",")
	balancer := map[string]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "cooperative": kgo.CooperativeStickyBalancer()}
	owned := partitions{}
	changes := func(isOwned bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) { owned.change(topic, changed, isOwned) }
	}
	session, err := time.ParseDuration(os.Getenv("SESSION_MS") + "ms")
	if err != nil {
		panic(err)
	}
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
	for ended.Err() == nil {
		records := client.PollFetches(ended).Records()
		if len(records) > 0 {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			if err := client.CommitRecords(ctx, records...); err != nil {
				fmt.Fprintln(os.Stderr, err)
			} else {
				values := []int{}
				for _, record := range records {
					value, err := strconv.Atoi(string(record.Value))
					check(err)
					values = append(values, value)
				}
				say(answer{"read": values})
			}
			cancel()
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}
