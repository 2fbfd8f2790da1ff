/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that this process's ranks work on: their names and their state. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/var.h"
#include "distributed/stepper.h"
#include "monitor/monitor_internal.h"
#include "nn/module.h"
#include "nn/module_tree.h"
#include "tensor/backend.h"
#include "tensor/memory.h"

static trek_status take_device(const char *name, trek_var *param, void *arg)
{
    (void)name;
    *(trek_device *)arg = trek_var_device(param);
    return TREK_OK;
}

trek_device trek_monitor_device(const trek_monitor *m, int rank)
{
    const trek_step *s = trek_graph_ranks(m->graph);
    trek_device device = trek_device_default();
    if (s && rank < trek_step_team(s)->local_ranks)
        return trek_ranks_device(trek_step_team(s)->ranks, rank);
    trek_module_each_param(trek_graph_module(m->graph), take_device, &device);
    return device;
}

static bool describe(trek_device device, trek_device_info *info)
{
    const trek_backend *backend = trek_backend_find(device.type, NULL, 0);
    return backend && backend->describe(device.index, info) == TREK_OK;
}

bool trek_monitor_device_name(trek_device device, char *name)
{
    trek_device_info info;
    if (!describe(device, &info))
        return false;
    if (device.type == TREK_CPU)
        snprintf(name, TREK_MONITOR_DEVICE_NAME, "%s, %d core%s", info.name, info.multiprocessors,
                 info.multiprocessors == 1 ? "" : "s");
    else
        snprintf(name, TREK_MONITOR_DEVICE_NAME, "%s", info.name);
    return true;
}

void trek_monitor_find_gpus(trek_monitor *m)
{
    trek_monitor_gpu found[TREK_MONITOR_GPUS];
    trek_device_info info;
    int n = 0;
    for (int k = 0; k < m->local_ranks && n < TREK_MONITOR_GPUS; k++) {
        trek_device device = trek_monitor_device(m, k);
        bool known = device.type == TREK_CPU;
        for (int j = 0; j < n && !known; j++)
            known = trek_device_equal(found[j].device, device);
        if (known || !describe(device, &info))
            continue;
        found[n] = (trek_monitor_gpu){ .device = device, .memory = info.memory };
        memcpy(found[n++].uuid, info.uuid, sizeof info.uuid);
    }
    pthread_mutex_lock(&m->lock);
    memcpy(m->gpus, found, (size_t)n * sizeof *found);
    m->n_gpus = n;
    pthread_mutex_unlock(&m->lock);
}

static void add_bytes(trek_text *line, trek_device device, bool first)
{
    char text[16];
    const char *name = device.type == TREK_CPU ? "cpu" : trek_device_name(device, text, sizeof text);
        /* CPU devices share their counters */
    trek_text_format(line, "%s\"%s\":%lld", first ? "" : ",", name, (long long)trek_memory_usage(device).allocated);
}

static void add_gpu(trek_text *line, const trek_monitor_gpu *gpu, bool first)
{
    char text[16];
    trek_nvml_told told = trek_nvml_look(gpu->uuid);
    if (isnan(told.memory_total_bytes) && gpu->memory > 0)
        told.memory_total_bytes = (double)gpu->memory;
    trek_text_format(line, "%s{\"device\":\"%s\"", first ? "" : ",", trek_device_name(gpu->device, text, sizeof text));
    trek_monitor_known(line, "memory_bytes", told.memory_bytes);
    trek_monitor_known(line, "memory_total_bytes", told.memory_total_bytes);
    trek_monitor_known(line, "temperature_c", told.temperature_c);
    trek_monitor_known(line, "power_w", told.power_w);
    trek_monitor_known(line, "utilization_percent", told.utilization_percent);
    if (told.throttled)
        trek_monitor_word(line, "throttled", told.throttled);
    trek_text_add(line, "}");
}

void trek_monitor_add_devices(trek_text *line, trek_monitor *m)
{
    trek_monitor_gpu gpus[TREK_MONITOR_GPUS];
    pthread_mutex_lock(&m->lock);
    int n = m->n_gpus;
    memcpy(gpus, m->gpus, (size_t)n * sizeof *gpus);
    pthread_mutex_unlock(&m->lock);
    trek_text_add(line, ",\"trek_bytes\":{");
    add_bytes(line, trek_cpu(0), true);
    for (int k = 0; k < n; k++)
        add_bytes(line, gpus[k].device, false);
    trek_text_add(line, n ? "},\"devices\":[" : "}");
    for (int k = 0; k < n; k++)
        add_gpu(line, &gpus[k], k == 0);
    trek_text_add(line, n ? "]" : "");
    trek_error_clear();
}
