/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event file next to a watched run's own, written during the run from each of its lines. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "monitor/monitor_internal.h"
#include "monitor/viewer.h"

/* Writes as much as possible, including what was collected earlier. Called with the lock held. */
static void put_events(trek_monitor *m, trek_text *events)
{
    size_t done = 0;
    while (!events->failed && m->events >= 0 && done < events->length) {
        ssize_t written = write(m->events, events->data + done, events->length - done);
        if (written > 0)
            done += (size_t)written;
        else if (written == 0 || errno != EINTR) {
            close(m->events); /* the run's own file gives the reason */
            m->events = -1;
        }
    }
    trek_text_clear(events);
}

/* The name is TensorFlow's: events.out.tfevents.SECONDS.HOST, and the process. A later file in the same folder is
 * read after it. */
void trek_monitor_events_open(trek_monitor *m)
{
    char host[256] = "host";
    trek_text begin = { 0 };
    if (trek_viewer_event_begin(&begin, m->started) != TREK_OK) {
        trek_log_message(TREK_LOG_LEVEL_WARNING, "the run is watched without TensorBoard: %s", trek_error());
        trek_error_clear();
        return;
    }
    gethostname(host, sizeof host - 1);
    char *name = trek_format("events.out.tfevents.%lld.%s.%d", (long long)m->started, host, m->process);
    m->events = name ? trek_monitor_open_file(m, name, O_WRONLY) : -1;
    trek_free(name);
    put_events(m, &begin);
}

void trek_monitor_events_add(trek_monitor *m, const char *line, size_t length)
{
    trek_text events = { 0 };
    bool clean = trek_error_status() == TREK_OK;
    if (m->events < 0)
        return;
    if (trek_viewer_event_line(&events, line, length, m->process, &m->events_step) == TREK_OK)
        put_events(m, &events);
    if (clean)
        trek_error_clear();
}
