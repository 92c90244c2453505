// A producer in Go, with the standard library alone: puts tasks over HTTP, and repeats a request until it is answered.
//
//	go run producer.go http://127.0.0.1:8720 put 10000
//
// FRESHQ_TOKEN is the bearer token, if the server needs one.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"sync"
	"time"
)

const (
	requestsAtATime = 8
	batchTasks      = 25
)

type request struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    any               `json:"body"`
	Text    string            `json:"text"`
}

type vector struct {
	Name    string         `json:"name"`
	Request request        `json:"request"`
	Status  int            `json:"status"`
	Answer  map[string]any `json:"answer"`
}

type task struct {
	TaskID        string         `json:"task_id"`
	Payload       map[string]int `json:"payload"`
	MaxAgeSeconds float64        `json:"max_age_seconds"`
}

type receipt struct {
	TaskID  string `json:"task_id"`
	Outcome string `json:"outcome"`
}

var client = &http.Client{Timeout: 30 * time.Second}

func send(base string, asked request, answer any) (*http.Response, error) {
	body := []byte(asked.Text)
	if asked.Body != nil {
		body, _ = json.Marshal(asked.Body)
	}
	made, err := http.NewRequest(asked.Method, base+asked.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if token := os.Getenv("FRESHQ_TOKEN"); token != "" {
		made.Header.Set("Authorization", "Bearer "+token)
	}
	if asked.Body != nil {
		made.Header.Set("Content-Type", "application/json")
	}
	for name, value := range asked.Headers {
		made.Header.Set(name, value)
	}
	response, err := client.Do(made)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return response, json.NewDecoder(response.Body).Decode(answer)
}

// Each task has an id, so a request whose answer was lost can be sent again: no task is put twice.
func put(base string, tasks []task) []receipt {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		var answer struct {
			Message  string    `json:"message"`
			Receipts []receipt `json:"receipts"`
		}
		asked := request{Method: "POST", Path: "/v1/batch", Body: map[string]any{"tasks": tasks}}
		response, err := send(base, asked, &answer)
		switch {
		case err != nil: // the server is away, or was killed before its answer
			time.Sleep(pause)
		case response.StatusCode == 200:
			return answer.Receipts
		case response.StatusCode == 429 || response.StatusCode >= 500:
			seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
			time.Sleep(time.Duration(seconds+1) * time.Second)
		default:
			panic("refused: " + answer.Message)
		}
	}
}

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func putMany(base string, count int) {
	numbers := make(chan int)
	outcomes := map[string]int{"CREATED": 0, "DUPLICATE": 0}
	var lock sync.Mutex
	var producers sync.WaitGroup
	for range [requestsAtATime]int{} {
		producers.Add(1)
		go func() {
			defer producers.Done()
			for first := range numbers {
				var tasks []task
				for number := first; number < first+batchTasks && number < count; number++ {
					id := "order-" + strconv.Itoa(number)
					tasks = append(tasks, task{id, map[string]int{"number": number}, 3600})
				}
				receipts := put(base, tasks)
				lock.Lock()
				for _, each := range receipts {
					outcomes[each.Outcome]++
				}
				lock.Unlock()
			}
		}()
	}
	for first := 0; first < count; first += batchTasks {
		numbers <- first
	}
	close(numbers)
	producers.Wait()
	text, _ := json.Marshal(outcomes)
	fmt.Println(string(text))
}

// Sends requests from a file, and compares the answers.
func compare(base, file string) {
	text, err := os.ReadFile(file)
	var vectors []vector
	if err == nil {
		err = json.Unmarshal(text, &vectors)
	}
	if err != nil {
		panic(err)
	}
	failed := false
	for _, each := range vectors {
		var found map[string]any
		response, err := send(base, each.Request, &found)
		if err != nil {
			panic(err)
		}
		same := response.StatusCode == each.Status
		for name, value := range each.Answer {
			same = same && reflect.DeepEqual(found[name], value)
		}
		if !same {
			fmt.Println(each.Name, response.StatusCode, found)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: producer URL put COUNT | producer URL compare FILE")
		os.Exit(2)
	}
	if os.Args[2] != "put" {
		compare(os.Args[1], os.Args[3])
		return
	}
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	putMany(os.Args[1], count)
}
