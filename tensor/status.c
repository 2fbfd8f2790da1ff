/* SPDX-License-Identifier: Apache-2.0 */
/* The sticky error of a thread, and the log. */
#include "tensor/status_internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/plain_text.h"
#include "tensor/thread_end.h"
#include "tensor/version.h"

/* The calling thread's error. Its text is plain memory, which is allocated for the first error and kept; without
 * memory only the status is reported. */
static _Thread_local trek_status sticky;
static _Thread_local uint32_t errors; /* how many there have been */
static _Thread_local struct text {
    uint64_t number;             /* the number of the current error, or of the last */
    bool further;                /* a second error came and was logged */
    size_t placed;               /* characters before the message that say where */
    const void *where;           /* the object that they describe; NULL: none */
    char message[TREK_ERROR_SIZE];
    char searched[160];          /* what the last search for a name has not found; "": it found it, or that was reported */
} *sticky_text;

static void text_end(void)
{
    free(sticky_text);
    sticky_text = NULL;
}

static struct text *text_get(void)
{
    if (sticky_text)
        return sticky_text;
    sticky_text = malloc(sizeof *sticky_text);
    if (sticky_text) {
        sticky_text->message[0] = sticky_text->searched[0] = '\0';
        sticky_text->number = errors;
        trek_thread_at_end(TREK_THREAD_ERROR, text_end);
    }
    return sticky_text;
}

static const struct {
    const char *name, *text;
} statuses[] = {
    { "TREK_OK", "no error" },
#define STATUS_ROW(name, text) { "TREK_ERR_" #name, text },
    TREK_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};
enum { STATUS_COUNT = sizeof statuses / sizeof statuses[0] };

trek_status trek_error_status(void) { return sticky; }

const char *trek_error(void)
{
    if (!sticky)
        return "";
    return sticky_text ? sticky_text->message : trek_status_description(sticky);
}

void trek_error_clear(void) { sticky = TREK_OK; }

const char *trek_status_description(trek_status status)
{
    return (unsigned)status < STATUS_COUNT ? statuses[status].text : "unknown status";
}

const char *trek_status_name(trek_status status)
{
    return (unsigned)status < STATUS_COUNT ? statuses[status].name : "unknown";
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
const char *trek_version(void) { return VERSION_TEXT(TREK_VERSION_MAJOR, TREK_VERSION_MINOR, TREK_VERSION_PATCH); }

/* Stops where the error arises, for debugging. */
static void stop_if_asked(void)
{
    const char *mode = getenv("TREK_ON_ERROR"); /* trek_environment_check refuses other words */
    if (!mode || strcmp(mode, "abort") != 0)
        return;
    fprintf(stderr, "trek: %s: %s\n", trek_status_name(sticky), trek_error());
    abort();
}

/* Called once for each first error: later errors are mostly its consequences, and a loop would repeat them for ever. */
static void log_further(trek_status status, const char *format, va_list arguments)
{
    if (!sticky_text || sticky_text->further || (status == TREK_ERR_MEMORY && sticky == TREK_ERR_MEMORY))
        return;
    sticky_text->further = true;
    char message[TREK_ERROR_SIZE / 2];
    vsnprintf(message, sizeof message, format, arguments);
    if (strcmp(message, sticky_text->message) != 0)
        trek_log_message(TREK_LOG_LEVEL_WARNING, "a further error, while the first has not been cleared: %s (the first: %s)",
                         message,
                         sticky_text->message);
}

trek_status trek_fail(trek_status status, const char *format, ...)
{
    if (status == TREK_OK || (unsigned)status >= STATUS_COUNT)
        status = TREK_ERR_CALLBACK;
    va_list arguments;
    va_start(arguments, format);
    if (sticky) {
        log_further(status, format, arguments);
    } else {
        struct text *text = text_get();
        sticky = status;
        errors++;
        if (text) {
            text->number = errors;
            text->further = false;
            text->placed = 0;
            text->where = NULL;
            vsnprintf(text->message, sizeof text->message, format, arguments);
        }
        stop_if_asked();
    }
    va_end(arguments);
    return status;
}

trek_status trek_fail_after(trek_status status, const char *format, ...)
{
    if (sticky)
        return status;
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return trek_fail(status, "%s", message);
}

uint64_t trek_error_number(void) { return sticky_text ? sticky_text->number : errors; }

const void *trek_error_where(void) { return sticky && sticky_text ? sticky_text->where : NULL; }

void trek_error_place(const void *where, const char *path, const char *kind)
{
    if (!sticky || !sticky_text)
        return;
    struct text *t = sticky_text;
    char place[300] = "";
    const char *rest = t->message + t->placed;
    size_t said = strlen(kind);
    t->where = where;
    if (*path)
        snprintf(place, sizeof place, "%.200s (%.60s): ", path, kind);
    if (*path && t->placed == 0 && strncmp(rest, kind, said) == 0 && rest[said] == ':' && rest[said + 1] == ' ')
        rest += said + 2; /* an op with the same name as the layer */
    size_t length = strlen(place), left = strlen(rest);
    if (left > sizeof t->message - 1 - length)
        left = sizeof t->message - 1 - length;
    memmove(t->message + length, rest, left);
    memcpy(t->message, place, length);
    t->message[length + left] = '\0';
    t->placed = length;
}

void trek_note_search(const char *function, const char *name)
{
    struct text *text = name ? text_get() : sticky_text;
    if (text && name)
        snprintf(text->searched, sizeof text->searched, "; the last %s, for \"%.100s\", found nothing", function, name);
    else if (text)
        text->searched[0] = '\0';
}

trek_status trek_fail_missing(const char *function, const char *what)
{
    if (sticky)
        return sticky;
    trek_status status = trek_fail(TREK_ERR_ARGUMENT, "%s: %s: NULL; it must be given%s", function, what,
                                   sticky_text ? sticky_text->searched : "");
    trek_note_search(NULL, NULL);
    return status;
}

void trek_error_take(trek_status *status, char *message)
{
    *status = sticky;
    snprintf(message, TREK_ERROR_SIZE, "%s", trek_error());
    trek_error_clear();
}

void trek_error_keep(trek_kept_error *kept)
{
    const struct text *text = sticky ? sticky_text : NULL;
    kept->number = trek_error_number();
    kept->further = text && text->further;
    kept->placed = text ? text->placed : 0;
    kept->where = text ? text->where : NULL;
    trek_error_take(&kept->status, kept->message);
}

void trek_error_put_back(const trek_kept_error *kept)
{
    if (kept->status == TREK_OK)
        return;
    trek_status later;
    char message[TREK_ERROR_SIZE];
    trek_error_take(&later, message);
    struct text *text = text_get();
    sticky = kept->status;
    if (text) {
        text->number = kept->number;
        text->further = kept->further;
        text->placed = kept->placed;
        text->where = kept->where;
        memcpy(text->message, kept->message, sizeof text->message);
    }
    if (later != TREK_OK)
        trek_fail(later, "%s", message); /* logged as an error that follows the first */
}

bool trek_forked;
atomic_bool trek_not_lean;

static void mark_forked(void)
{
    trek_forked = true;
    atomic_store_explicit(&trek_not_lean, true, memory_order_relaxed);
}

__attribute__((constructor)) static void watch_fork(void) { pthread_atfork(NULL, NULL, mark_forked); }

trek_status trek_fail_forked(void)
{
    return trek_fail(TREK_ERR_STATE, "fork: this process was forked from one that used trek; its threads do not exist here");
}

/* --- log ------------------------------------------------------------------ */

static const char *const log_names[] = { "error", "warning", "info", "debug" };

static void log_to_stderr(trek_log_level level, const char *message, void *arg)
{
    char plain[TREK_ERROR_SIZE]; /* messages may contain what other processes have sent */
    (void)arg;
    trek_plain_text(plain, sizeof plain, message, strlen(message));
    fprintf(stderr, "trek: %s: %s\n", log_names[level], plain);
}

_Atomic(trek_log_watch_fn) trek_log_watcher;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int log_level = -1;
static trek_log_fn log_fn = log_to_stderr;
static void *log_arg;
static void (*log_around)(bool before);

static int initial_level(void)
{
    const char *text = getenv("TREK_LOG");
    for (int k = 0; text && k < 4; k++)
        if (strcmp(text, log_names[k]) == 0)
            return k;
    if (text && *text) /* before the level is known */
        fprintf(stderr, "trek: warning: TREK_LOG=%.80s is ignored: it takes error, warning, info or debug\n", text);
    return TREK_LOG_LEVEL_WARNING;
}

void trek_log_set(trek_log_level level, trek_log_fn fn, void *arg)
{
    pthread_mutex_lock(&log_lock);
    atomic_store(&log_level, (int)level);
    log_fn = fn;
    log_arg = arg;
    pthread_mutex_unlock(&log_lock);
}

void trek_log_set_around(void (*around)(bool before))
{
    pthread_mutex_lock(&log_lock);
    log_around = around;
    pthread_mutex_unlock(&log_lock);
}

/* Called with the lock held. */
static void deliver(trek_log_level level, const char *message)
{
    if (!log_fn)
        return;
    if (log_around)
        log_around(true);
    log_fn(level, message, log_arg);
    if (log_around)
        log_around(false);
}

static bool is_printed(trek_log_level level)
{
    int now = atomic_load(&log_level);
    if (now < 0) {
        int unset = -1, level_then = initial_level();
        atomic_compare_exchange_strong(&log_level, &unset, level_then);
        now = atomic_load(&log_level);
    }
    return (int)level <= now;
}

static trek_log_watch_fn watcher_of(trek_log_level level)
{
    return level <= TREK_LOG_LEVEL_INFO ? atomic_load(&trek_log_watcher) : NULL;
}

bool trek_log_wanted(trek_log_level level) { return is_printed(level) || watcher_of(level); }

void trek_log_message(trek_log_level level, const char *format, ...)
{
    bool printed = is_printed(level);
    trek_log_watch_fn watch = watcher_of(level);
    if (!printed && !watch)
        return;
    char message[TREK_ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (watch)
        watch(level, message);
    pthread_mutex_lock(&log_lock);
    if (printed)
        deliver(level, message);
    pthread_mutex_unlock(&log_lock);
}
