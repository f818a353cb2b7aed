// Package serving is what drivers in Go have in common; the protocol is in ../../serving.py.
package serving

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Limit is how long one request may take: leaders move meanwhile.
const Limit = 120 * time.Second

type Request struct {
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

type Answer map[string]any

// Check ends the driver if there is an error.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Say prints a line.
func Say(what Answer) {
	out, err := json.Marshal(what)
	Check(err)
	fmt.Println(string(out))
}

// Serve answers requests until standard input ends.
func Serve(answer func(Request) Answer) {
	for in := bufio.NewReader(os.Stdin); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r Request
		Check(json.Unmarshal(line, &r))
		Say(answer(r))
	}
}
