// The baseline of bench.cost: client-go's shared informer, a rate-limiting workqueue and two workers.
//
// When it is terminated it writes a line for each reconcile: the time of the change, and the seconds
// from there to its start. One process, nothing stored: what is pending when it dies is listed again.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
)

const at = "bench.fleetbus.dev/at"

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	pods := factory.Core().V1().Pods().Informer()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	enqueue := func(object any) {
		if key, err := cache.MetaNamespaceKeyFunc(object); err == nil {
			queue.Add(key)
		}
	}
	pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) { enqueue(object) },
	})
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), pods.HasSynced)
	fmt.Println("watching")

	var guard sync.Mutex
	var latencies [][2]float64
	var workers sync.WaitGroup
	for range 2 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for {
				key, quit := queue.Get()
				if quit {
					return
				}
				started := float64(time.Now().UnixNano()) / 1e9
				if object, found, _ := pods.GetStore().GetByKey(key); found {
					changed, _ := strconv.ParseFloat(object.(*corev1.Pod).Annotations[at], 64)
					guard.Lock()
					latencies = append(latencies, [2]float64{changed, started - changed})
					guard.Unlock()
				}
				queue.Forget(key)
				queue.Done(key)
			}
		}()
	}
	<-ctx.Done()
	queue.ShutDown()
	workers.Wait()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, latency := range latencies {
		fmt.Fprintf(out, "%.6f %.6f\n", latency[0], latency[1])
	}
}
