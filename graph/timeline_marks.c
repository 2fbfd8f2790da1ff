/* SPDX-License-Identifier: Apache-2.0 */
/* Device times of ops: pairs of events around each op, which are read on request, or when there are too many. */
#include "graph/timeline_internal.h"

#include "graph/graph_internal.h"
#include "tensor/backend.h"

enum { MOST_MARKS = 4096 };

struct trek_timeline_mark {
    trek_device device;
    trek_event *start, *end;  /* NULL: not made yet */
    trek_timeline_cell *cell; /* the cell that gets the time, once the op has ended */
    int next;                 /* next in its list; -1: none */
};

static const trek_backend *backend_of(const trek_timeline_mark *mark) { return trek_backends[mark->device.type]; }

static void end_events(trek_timeline_mark *mark)
{
    if (mark->start)
        backend_of(mark)->event_free(mark->start);
    if (mark->end)
        backend_of(mark)->event_free(mark->end);
    mark->start = mark->end = NULL;
}

/* Profiling must not make a program fail: if events do not work, none are used from then on. */
static bool works(trek_timeline_marks *m, trek_status status)
{
    if (status == TREK_OK)
        return true;
    m->failed = true;
    trek_error_clear();
    return false;
}

static trek_status record(trek_timeline_mark *mark, trek_event **event)
{
    trek_status status = *event ? TREK_OK : backend_of(mark)->event_new(mark->device, event);
    return status == TREK_OK ? backend_of(mark)->event_record(*event, NULL) : status;
}

static void give_back(trek_timeline_marks *m, int k)
{
    m->all[k].next = m->free;
    m->free = k;
}

void trek_timeline_marks_read(trek_timeline_marks *m, bool counts)
{
    bool clean = trek_error_status() == TREK_OK;
    while (m->pending >= 0) {
        int k = m->pending;
        trek_timeline_mark *mark = &m->all[k];
        double ms = 0;
        if (counts && clean && !m->failed && works(m, backend_of(mark)->event_sync(mark->end)) &&
            works(m, backend_of(mark)->event_elapsed_ms(mark->start, mark->end, &ms)))
            mark->cell->device_ns += (int64_t)(ms * 1e6);
        m->pending = mark->next;
        give_back(m, k);
    }
}

/* Returns a free mark for that device, or -1. */
static int obtain(trek_timeline_marks *m, trek_device device)
{
    if (m->free < 0 && m->count == MOST_MARKS)
        trek_timeline_marks_read(m, true);
    if (m->free < 0 && m->count < MOST_MARKS) {
        if (!m->all && !(m->all = trek_calloc(MOST_MARKS, sizeof *m->all)))
            return -1;
        m->all[m->count].next = -1;
        m->free = m->count++;
    }
    int k = m->free;
    if (k < 0)
        return -1;
    m->free = m->all[k].next;
    if (m->all[k].start && !trek_device_equal(m->all[k].device, device))
        end_events(&m->all[k]);
    m->all[k].device = device;
    return k;
}

int trek_timeline_mark_begin(trek_timeline_marks *m, trek_device device)
{
    const trek_backend *backend = trek_backends[device.type];
    if (m->failed || trek_error_status() != TREK_OK || (backend->capturing && backend->capturing()))
        return 0;
    int k = obtain(m, device);
    if (k < 0) {
        works(m, trek_error_status());
        return 0;
    }
    if (works(m, record(&m->all[k], &m->all[k].start)))
        return k + 1;
    give_back(m, k);
    return 0;
}

void trek_timeline_mark_end(trek_timeline_marks *m, int number, trek_timeline_cell *cell)
{
    int k = number - 1;
    if (!cell || m->failed || trek_error_status() != TREK_OK || !works(m, record(&m->all[k], &m->all[k].end))) {
        give_back(m, k);
        return;
    }
    m->all[k].cell = cell;
    m->all[k].next = m->pending;
    m->pending = k;
}

void trek_timeline_marks_free(trek_timeline_marks *m)
{
    for (int k = 0; k < m->count; k++)
        end_events(&m->all[k]);
    trek_free(m->all);
}
