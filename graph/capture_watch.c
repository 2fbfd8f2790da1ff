/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what a step function uses but has not made: storages that were made while it ran carry the run's number, all
 * others existed before. */
#include "graph/capture_internal.h"

#include <pthread.h>

/* Guards the list that is being written, because the ranks of a step share one. Steps are rarely watched. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add(trek_touch_list *list, trek_tensor *tensor, bool written)
{
    bool added;
    if (trek_pointer_map_add(&list->seen, tensor->storage, list->n, &added) != TREK_OK ||
        (added && trek_array_grow(&list->entries, &list->capacity, list->n + 1, sizeof *list->entries) != TREK_OK)) {
        list->failed = true;
        return;
    }
    if (added)
        list->entries[list->n++] = (trek_touched){ .tensor = trek_tensor_retain(tensor) };
    int k = trek_pointer_map_get(&list->seen, tensor->storage);
    list->entries[k].written |= written;
}

static bool is_ours(const trek_touch_list *list, trek_device device)
{
    const trek_stepper *stepper = list->stepper;
    return trek_device_equal(device, list->device) || (stepper->klass->capture->uses &&
                                                       stepper->klass->capture->uses(stepper, device));
}

static void see(trek_tensor *tensor, bool written, void *arg)
{
    trek_touch_list *list = arg;
    pthread_mutex_lock(&lock);
    if (tensor->device.type == TREK_CPU)
        list->problem = "the function computes on the host";
    else if (!is_ours(list, tensor->device))
        list->problem = "the function computes on another device than the graph's";
    else if (tensor->storage->run != list->watch.run)
        add(list, tensor, written);
    pthread_mutex_unlock(&lock);
}

static void refuse(const char *why, void *arg)
{
    trek_touch_list *list = arg;
    pthread_mutex_lock(&lock);
    list->problem = why;
    pthread_mutex_unlock(&lock);
}

void trek_touch_clear(trek_touch_list *list)
{
    for (int k = 0; k < list->n; k++)
        trek_tensor_release(list->entries[k].tensor);
    trek_free(list->entries);
    trek_pointer_map_clear(&list->seen);
    *list = (trek_touch_list){ .n = 0 };
}

void trek_touch_begin(trek_touch_list *list, const trek_stepper *stepper, trek_device device)
{
    static atomic_uint runs;
    trek_touch_clear(list);
    list->device = device;
    list->stepper = stepper;
    uint32_t run;
    do
        run = atomic_fetch_add(&runs, 1) + 1;
    while (run == 0); /* 0 stands for no run */
    list->watch = (trek_rank_watch){ .run = run, .see = see, .refuse = refuse, .arg = list };
    trek_rank_here.watch = &list->watch;
}

void trek_touch_end(void) { trek_rank_here.watch = NULL; }

bool trek_touch_within(const trek_touch_list *later, const trek_touch_list *earlier)
{
    for (int k = 0; k < later->n; k++)
        if (trek_pointer_map_get(&earlier->seen, later->entries[k].tensor->storage) < 0)
            return false;
    return true;
}

void trek_touch_bump(const trek_touch_list *list)
{
    for (int k = 0; k < list->n; k++)
        if (list->entries[k].written)
            trek_tensor_bump(list->entries[k].tensor);
}
