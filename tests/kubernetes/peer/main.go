// The other side in the tests on the node: agents that send OTLP to a sidecar, and a backend that says what arrived. Speaks OTLP by
// OpenTelemetry's own Go modules, and knows nothing of spanscore.
//
//	peer send ADDRESS FILE...          sends recorded requests as they are, and ends with the last answer
//	peer agent ADDRESS RUNS SECONDS    agent runs by the OpenTelemetry SDK, each with two tool calls; on SIGTERM the one that runs is the last
//	peer flood ADDRESS MEBIBYTES       requests of 1 MiB, each a trace of its own, as fast as they are answered; refused ones are not repeated
//	peer load ADDRESS PER_SECOND       small runs, each a request that is sent until it is acknowledged, and then printed; ends on SIGTERM
//	peer sink ADDRESS                  takes OTLP and prints every span, log record and metric as a line of JSON
//	peer hold ADDRESS                  takes OTLP connections and never answers
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	logs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traces "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resources "go.opentelemetry.io/proto/otlp/resource/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if len(os.Args) < 3 {
		log.Fatal("what, and at which address?")
	}
	command, address, rest := os.Args[1], os.Args[2], os.Args[3:]
	switch command {
	case "send":
		send(address, rest)
	case "agent":
		agent(address, number(rest[0]), number(rest[1]))
	case "flood":
		flood(address, number(rest[0]))
	case "load":
		load(address, number(rest[0]))
	case "sink":
		sink(address)
	case "hold":
		hold(address)
	default:
		log.Fatalf("%s: no such thing", command)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func client(address string) traces.TraceServiceClient {
	return traces.NewTraceServiceClient(connect(address))
}

func connect(address string) *grpc.ClientConn {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	return connection
}

func export(service traces.TraceServiceClient, request *traces.ExportTraceServiceRequest) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := service.Export(ctx, request)
	if err == nil && answer.GetPartialSuccess().GetRejectedSpans() > 0 {
		return fmt.Errorf("rejected: %v", answer)
	}
	return err
}

func send(address string, files []string) {
	service := client(address)
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			log.Fatal(err)
		}
		request := &traces.ExportTraceServiceRequest{}
		if err := proto.Unmarshal(body, request); err != nil {
			log.Fatal(err)
		}
		if err := export(service, request); err != nil {
			log.Fatalf("%s: %v", file, err)
		}
	}
	log.Printf("sent %d requests", len(files))
	ended()
}

func agent(address string, runs, seconds int) {
	ctx := context.Background()
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(address), otlptracegrpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	provider := trace.NewTracerProvider(
		trace.WithBatcher(exporter, trace.WithBatchTimeout(200*time.Millisecond)),
		trace.WithResource(resource.NewSchemaless(attribute.String("service.name", "peer"))),
	)
	tracer := provider.Tracer("peer")
	operation := func(name, key, value string) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("gen_ai.operation.name", name), attribute.String(key, value)}
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	for idx := 0; idx < runs && len(told) == 0; idx++ {
		running, root := tracer.Start(ctx, "invoke_agent shop")
		root.SetAttributes(operation("invoke_agent", "gen_ai.agent.name", "shop")...)
		for _, tool := range []string{"validate_user", "create_order"} {
			_, call := tracer.Start(running, "execute_tool "+tool)
			call.SetAttributes(operation("execute_tool", "gen_ai.tool.name", tool)...)
			time.Sleep(time.Duration(seconds) * time.Second / 2)
			call.End()
			log.Printf("run %d of %d called %s", idx+1, runs, tool)
		}
		root.End()
		log.Printf("run %d of %d is trace %s", idx+1, runs, root.SpanContext().TraceID())
	}
	if err := provider.Shutdown(ctx); err != nil {
		log.Fatalf("shutdown: %v", err)
	}
	ended()
}

// The last line of an agent, in Unix seconds, which Kubernetes tells to the second only.
func ended() {
	fmt.Printf("ended %.3f\n", float64(time.Now().UnixNano())/1e9)
}

func text(value string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}
}

func random(n int) []byte {
	id := make([]byte, n)
	rand.Read(id)
	return id
}

// A root that never ends keeps its trace open; 256 calls with 4 KiB of arguments each.
func mebibyte() *traces.ExportTraceServiceRequest {
	now := uint64(time.Now().UnixNano())
	id, root := random(16), random(8)
	all := []*spans.Span{}
	for idx := range 256 {
		all = append(all, &spans.Span{
			TraceId: id, SpanId: random(8), ParentSpanId: root, Name: fmt.Sprintf("execute_tool t%d", idx),
			StartTimeUnixNano: now, EndTimeUnixNano: now + 1,
			Attributes: []*common.KeyValue{
				{Key: "gen_ai.operation.name", Value: text("execute_tool")},
				{Key: "gen_ai.tool.name", Value: text(fmt.Sprintf("t%d", idx))},
				{Key: "gen_ai.tool.call.arguments", Value: text(`{"text":"` + hex.EncodeToString(random(2000)) + `"}`)},
			},
		})
	}
	return &traces.ExportTraceServiceRequest{ResourceSpans: []*spans.ResourceSpans{{
		Resource:   &resources.Resource{Attributes: []*common.KeyValue{{Key: "service.name", Value: text("flood")}}},
		ScopeSpans: []*spans.ScopeSpans{{Spans: all}},
	}}}
}

func flood(address string, mebibytes int) {
	service := client(address)
	var lock sync.Mutex
	answers := map[string]int{}
	work := make(chan struct{})
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range work {
				err := export(service, mebibyte())
				lock.Lock()
				answers[status.Code(err).String()]++
				lock.Unlock()
				if err != nil && status.Code(err) != codes.Unavailable {
					log.Print(err)
				}
			}
		})
	}
	for range mebibytes {
		work <- struct{}{}
	}
	close(work)
	workers.Wait()
	line, _ := json.Marshal(answers)
	fmt.Println(string(line))
}

// A run that is over: its root and two calls, in the order of the criterion.
func smallRun() (*traces.ExportTraceServiceRequest, string) {
	now := uint64(time.Now().UnixNano())
	id, root := random(16), random(8)
	operation := func(name, key, value string) []*common.KeyValue {
		return []*common.KeyValue{{Key: "gen_ai.operation.name", Value: text(name)}, {Key: key, Value: text(value)}}
	}
	all := []*spans.Span{{
		TraceId: id, SpanId: root, Name: "invoke_agent shop", StartTimeUnixNano: now - 3000, EndTimeUnixNano: now,
		Attributes: operation("invoke_agent", "gen_ai.agent.name", "shop"),
	}}
	for idx, tool := range []string{"validate_user", "create_order"} {
		begun := now - 2000 + uint64(idx)*1000
		all = append(all, &spans.Span{
			TraceId: id, SpanId: random(8), ParentSpanId: root, Name: "execute_tool " + tool, StartTimeUnixNano: begun, EndTimeUnixNano: begun + 500,
			Attributes: operation("execute_tool", "gen_ai.tool.name", tool),
		})
	}
	return &traces.ExportTraceServiceRequest{ResourceSpans: []*spans.ResourceSpans{{
		Resource:   &resources.Resource{Attributes: []*common.KeyValue{{Key: "service.name", Value: text("load")}}},
		ScopeSpans: []*spans.ScopeSpans{{Spans: all}},
	}}}, hex.EncodeToString(id)
}

// What was acknowledged is on standard output, and nothing else is. A connection is for a second: what is behind a Service changes.
func load(address string, perSecond int) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	const atOnce = 8
	pace := time.Second / time.Duration(perSecond) * atOnce
	var senders sync.WaitGroup
	for range atOnce {
		senders.Go(func() {
			for len(told) == 0 {
				connection := connect(address)
				service := traces.NewTraceServiceClient(connection)
				for begun := time.Now(); time.Since(begun) < time.Second && len(told) == 0; {
					next := time.Now().Add(pace)
					request, id := smallRun()
					for {
						err := export(service, request)
						if err == nil {
							break
						}
						if time.Since(next) > time.Minute {
							log.Fatalf("not acknowledged for a minute: %v", err)
						}
						log.Printf("again: %v", err)
						time.Sleep(200 * time.Millisecond)
						connection.Close()
						connection = connect(address)
						service = traces.NewTraceServiceClient(connection)
					}
					fmt.Printf("acknowledged %s\n", id)
					time.Sleep(time.Until(next))
				}
				connection.Close()
			}
		})
	}
	senders.Wait()
}

type backend struct {
	traces.UnimplementedTraceServiceServer
	lock sync.Mutex
}

type logService struct {
	logs.UnimplementedLogsServiceServer
	*backend
}

type metricService struct {
	metrics.UnimplementedMetricsServiceServer
	*backend
}

func (b *backend) print(line map[string]any) {
	encoded, _ := json.Marshal(line)
	b.lock.Lock()
	defer b.lock.Unlock()
	fmt.Println(string(encoded))
}

func plain(pairs []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, pair := range pairs {
		value := pair.GetValue()
		if value.GetStringValue() != "" {
			all[pair.GetKey()] = value.GetStringValue()
		} else {
			all[pair.GetKey()] = strings.TrimSpace(value.String())
		}
	}
	return all
}

func (b *backend) Export(_ context.Context, request *traces.ExportTraceServiceRequest) (*traces.ExportTraceServiceResponse, error) {
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				b.print(map[string]any{
					"signal": "span", "service": plain(resource.GetResource().GetAttributes())["service.name"], "scope": scope.GetScope().GetName(),
					"trace": hex.EncodeToString(span.GetTraceId()), "span": hex.EncodeToString(span.GetSpanId()), "name": span.GetName(),
					"attributes": plain(span.GetAttributes()),
				})
			}
		}
	}
	return &traces.ExportTraceServiceResponse{}, nil
}

func (s logService) Export(_ context.Context, request *logs.ExportLogsServiceRequest) (*logs.ExportLogsServiceResponse, error) {
	for _, resource := range request.GetResourceLogs() {
		for _, scope := range resource.GetScopeLogs() {
			for _, record := range scope.GetLogRecords() {
				s.print(map[string]any{
					"signal": "log", "scope": scope.GetScope().GetName(), "trace": hex.EncodeToString(record.GetTraceId()),
					"span": hex.EncodeToString(record.GetSpanId()), "name": record.GetEventName(), "attributes": plain(record.GetAttributes()),
				})
			}
		}
	}
	return &logs.ExportLogsServiceResponse{}, nil
}

func (s metricService) Export(_ context.Context, request *metrics.ExportMetricsServiceRequest) (*metrics.ExportMetricsServiceResponse, error) {
	for _, resource := range request.GetResourceMetrics() {
		for _, scope := range resource.GetScopeMetrics() {
			for _, metric := range scope.GetMetrics() {
				sum := 0.0
				for _, point := range metric.GetSum().GetDataPoints() {
					sum += float64(point.GetAsInt()) + point.GetAsDouble()
				}
				s.print(map[string]any{"signal": "metric", "scope": scope.GetScope().GetName(), "name": metric.GetName(), "sum": sum})
			}
		}
	}
	return &metrics.ExportMetricsServiceResponse{}, nil
}

func sink(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	b := &backend{}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	traces.RegisterTraceServiceServer(server, b)
	logs.RegisterLogsServiceServer(server, logService{backend: b})
	metrics.RegisterMetricsServiceServer(server, metricService{backend: b})
	log.Fatal(server.Serve(listener))
}

func hold(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	held := []net.Conn{}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		held = append(held, connection)
	}
}
