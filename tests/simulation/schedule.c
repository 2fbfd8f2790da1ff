/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler and the clock: one thread runs at a time, which one is drawn; when none can, time jumps to the next event. And
 * what system.h says of time, locks, conditions, words and threads. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/tape_internal.h"
#include "tensor/scope_internal.h"
#include "tensor/thread_end.h"
#include "tensor/trace.h"
#include "tests/simulation/simulation.h"

sim_world sim;
static fiber *test; /* who has called sim_run */

int64_t __real_trek_clock_ns(void);
int64_t __wrap_trek_clock_ns(void);

/* --- chance ------------------------------------------------------------------------------------------------------- */

uint64_t sim_draw(sim_random *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t sim_below(sim_random *random, int64_t below) { return below > 1 ? (int64_t)(sim_draw(random) % (uint64_t)below) : 0; }
bool sim_chance(sim_random *random, int of) { return of > 0 && sim_below(random, 1000) < of; }

int64_t sim_span(sim_random *random, int64_t low, int64_t high)
{
    int octaves = 0;
    while (low << (octaves + 1) <= high)
        octaves++;
    int64_t base = low << sim_below(random, octaves + 1), value = base + sim_below(random, base + 1);
    return value < high ? value : high;
}

/* --- what happens, in words and as a number ---------------------------------------------------------------------------- */

void sim_hash(uint64_t value) { sim.hash = (sim.hash ^ value) * 0x100000001b3u ^ (sim.hash >> 29); }

void sim_trace(const char *format, ...)
{
    if (!sim.trace)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%12.6f ms  ", (double)(sim.now_ns - 1000 * SIM_S) * 1e-6);
    if (sim.running)
        fprintf(stderr, "process %d thread %d (%s): ", sim.running->process->number, sim.running->number,
                sim.running->name[0] ? sim.running->name : "-");
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

void sim_fail(const char *format, ...)
{
    if (sim.failure[0])
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim.failure, sizeof sim.failure, format, arguments);
    va_end(arguments);
    sim_trace("FAILURE: %s", sim.failure);
    sim.over = true;
}

/* --- events --------------------------------------------------------------------------------------------------------- */

static bool is_before(const sim_event *a, const sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void sim_at(int64_t at_ns, sim_event_fn fn, void *arg, uint64_t number)
{
    if (sim.n_events == sim.cap_events) {
        sim.cap_events = sim.cap_events ? 2 * sim.cap_events : 1024;
        sim.events = realloc(sim.events, (size_t)sim.cap_events * sizeof *sim.events);
        if (!sim.events)
            abort();
    }
    sim_event event = { at_ns, ++sim.order, number, fn, arg };
    int k = sim.n_events++;
    for (; k > 0 && is_before(&event, &sim.events[(k - 1) / 2]); k = (k - 1) / 2)
        sim.events[k] = sim.events[(k - 1) / 2];
    sim.events[k] = event;
}

static sim_event take_event(void)
{
    sim_event top = sim.events[0], last = sim.events[--sim.n_events];
    int k = 0;
    for (;;) {
        int child = 2 * k + 1;
        if (child + 1 < sim.n_events && is_before(&sim.events[child + 1], &sim.events[child]))
            child++;
        if (child >= sim.n_events || !is_before(&sim.events[child], &last))
            break;
        sim.events[k] = sim.events[child];
        k = child;
    }
    sim.events[k] = last;
    return top;
}

static void run_due_events(void)
{
    while (sim.n_events > 0 && sim.events[0].at_ns <= sim.now_ns && !sim.over) {
        sim_event event = take_event();
        event.fn(event.arg, event.number);
    }
}

/* --- who runs --------------------------------------------------------------------------------------------------------- */

static void make_ready(sim_thread *thread)
{
    if (thread->process->stopped) {
        thread->held = true;
        return;
    }
    if (sim.n_ready == sim.cap_ready) {
        sim.cap_ready = sim.cap_ready ? 2 * sim.cap_ready : 256;
        sim.ready = realloc(sim.ready, (size_t)sim.cap_ready * sizeof(sim_thread *));
        if (!sim.ready)
            abort();
    }
    sim.ready[sim.n_ready++] = thread;
}

static void not_ready(const sim_thread *thread)
{
    for (int k = 0; k < sim.n_ready; k++)
        if (sim.ready[k] == thread) {
            memmove(&sim.ready[k], &sim.ready[k + 1], (size_t)(--sim.n_ready - k) * sizeof(sim_thread *));
            return;
        }
}

void sim_wake(sim_thread *thread)
{
    if (thread->state != SIM_WAITING)
        return;
    thread->state = SIM_READY;
    thread->timed_out = false;
    thread->wait++;
    make_ready(thread);
}

static void switch_to(sim_thread *to)
{
    sim_process *from = sim.running ? sim.running->process : NULL, *process = to ? to->process : NULL;
    if (from != process) {
        if (from)
            from->job = trek_job_here;
        if (process)
            trek_job_here = process->job;
    }
    sim.running = to;
    fiber_switch(to ? to->fiber : test);
}

/* The next one that is drawn; the running one has said what it waits for. */
static void go_on(void)
{
    for (;;) {
        run_due_events();
        if (sim.over || sim.now_ns > sim.bound_ns || sim.steps > sim.most_steps) {
            sim.over = true;
            switch_to(NULL);
            return;
        }
        if (sim.n_ready > 0)
            break;
        if (sim.n_events == 0) {
            sim.over = true; /* all have ended, or wait for ever */
            continue;
        }
        if (sim.events[0].at_ns > sim.now_ns)
            sim.now_ns = sim.events[0].at_ns;
    }
    int k = (int)sim_below(&sim.random, sim.n_ready);
    sim_thread *next = sim.ready[k];
    sim.ready[k] = sim.ready[--sim.n_ready];
    sim_hash((uint64_t)next->number ^ (uint64_t)sim.now_ns << 8);
    switch_to(next);
}

static void give_way(void)
{
    make_ready(sim.running);
    go_on();
}

void sim_point(const char *what)
{
    sim_thread *self = sim.running;
    if (!self)
        return;
    sim.steps++;
    self->process->steps++;
    if (sim.trace_points)
        sim_trace("%s", what);
    self->waits_for = what;
    sim.now_ns += sim.settings.step_ns;
    sim_faults_look(self->process);
    if (self->process->slow && sim_chance(&sim.random, self->process->slow))
        sim_wait(sim.now_ns + sim_below(&sim.random, self->process->slow_ns), what);
    else if (sim_chance(&sim.random, sim.settings.preempt) || self->process->stopped || sim.over ||
             (sim.n_events > 0 && sim.events[0].at_ns <= sim.now_ns))
        give_way();
}

static void end_wait(void *arg, uint64_t number)
{
    sim_thread *thread = arg;
    if (thread->state != SIM_WAITING || thread->wait != number)
        return;
    sim_wake(thread);
    thread->timed_out = true;
}

bool sim_wait(int64_t until_ns, const char *what)
{
    sim_thread *self = sim.running;
    if (self->state != SIM_ENDED)
        self->state = SIM_WAITING;
    self->waits_for = what;
    if (until_ns != SIM_NEVER)
        sim_at(until_ns > sim.now_ns ? until_ns : sim.now_ns, end_wait, self, self->wait);
    go_on();
    return !self->timed_out;
}

void sim_hold(sim_process *process)
{
    process->stopped = true;
    for (sim_thread *t = process->threads; t; t = t->next)
        for (int k = 0; k < sim.n_ready; k++)
            if (sim.ready[k] == t) {
                not_ready(t);
                t->held = true;
            }
}

void sim_let_go(sim_process *process)
{
    process->stopped = false;
    for (sim_thread *t = process->threads; t; t = t->next)
        if (t->held) {
            t->held = false;
            make_ready(t);
        }
}

/* --- threads ------------------------------------------------------------------------------------------------------------ */

static void free_own(sim_own **own)
{
    while (*own) {
        sim_own *next = (*own)->next;
        free(*own);
        *own = next;
    }
}

static trek_tape *old_tapes; /* of threads that have ended: nodes of their processes may be on them */

/* The next thread takes the tape of one that has ended: of another process it is to have none. */
static void change_tape(void)
{
    trek_tape *tape = trek_tape_here;
    if (!tape)
        return;
    tape->next_orphan = old_tapes;
    old_tapes = tape;
    trek_tape_here = calloc(1, sizeof *tape);
    if (!trek_tape_here)
        abort();
}

static void leave_in_order(void)
{
    change_tape();
    trek_thread_end();
}

/* It is in the midst of something: what it holds goes with its process. */
static void leave_all(void)
{
    trek_scopes = (trek_scope_stack){ 0 };
    leave_in_order();
}

/* Memory of threads stays until the schedule is over: events may speak of them. */
static void end_thread(sim_thread *thread, void (*leave)(void))
{
    fiber_call(thread->fiber, leave);
    thread->state = SIM_ENDED;
    thread->wait++;
    free_own(&thread->own);
    fiber_free(thread->fiber);
    thread->fiber = NULL;
}

static void thread_main(void *arg)
{
    sim_thread *self = arg;
    self->run(self->arg);
    sim_point("end of a thread");
    end_thread(self, leave_in_order);
    if (self->joiner)
        sim_wake(self->joiner);
    go_on();
}

static sim_thread *all_threads;

sim_thread *sim_thread_new(sim_process *process, void *(*run)(void *arg), void *arg)
{
    sim_thread *thread = calloc(1, sizeof *thread);
    if (!thread)
        abort();
    thread->process = process;
    thread->number = ++sim.n_threads;
    thread->run = run;
    thread->arg = arg;
    thread->fiber = fiber_new(thread_main, thread);
    thread->next = process->threads;
    process->threads = thread;
    make_ready(thread);
    return thread;
}

/* They stop where they are. */
void sim_threads_drop(sim_process *process)
{
    for (sim_thread *t = process->threads, *next; t; t = next) {
        next = t->next;
        if (t->state != SIM_ENDED) {
            not_ready(t);
            end_thread(t, leave_all);
        }
        t->word = NULL;
        t->next = all_threads; /* until the schedule is over */
        all_threads = t;
    }
    process->threads = NULL;
}

static int begin_thread(trek_thread *thread, void *(*run)(void *arg), void *arg)
{
    sim_point("begin a thread");
    *thread = sim_thread_new(sim.running->process, run, arg);
    sim_trace("begins thread %d", (*thread)->number);
    return 0;
}

int trek_thread_begin(trek_thread *thread, void *(*run)(void *arg), void *arg) { return begin_thread(thread, run, arg); }

static void forget_thread(sim_thread *thread)
{
    sim_thread **at = &thread->process->threads;
    while (*at && *at != thread)
        at = &(*at)->next;
    if (!*at) {
        sim_fail("process %d: a thread is joined or detached that is none", thread->process->number);
        return;
    }
    *at = thread->next;
    thread->next = all_threads;
    all_threads = thread;
}

void trek_thread_join(trek_thread thread)
{
    sim_point("join");
    if (thread->joiner || thread->detached || thread == sim.running)
        sim_fail("process %d: a thread is joined twice, or by itself", thread->process->number);
    thread->joiner = sim.running;
    while (thread->state != SIM_ENDED)
        sim_wait(SIM_NEVER, "join");
    forget_thread(thread);
}

void trek_thread_detach(trek_thread thread) { thread->detached = true; }
trek_thread trek_thread_self(void) { return sim.running; }
bool trek_thread_equal(trek_thread a, trek_thread b) { return a == b; }

void trek_thread_name(trek_thread thread, const char *name) { snprintf(thread->name, sizeof thread->name, "%s", name); }

void trek_thread_yield(void)
{
    sim_point("yield");
    sim.now_ns += sim.settings.step_ns;
    if (sim.n_ready > 0)
        give_way();
    else
        sim_wait(sim.now_ns + 10000, "yield");
}

/* --- the clock ------------------------------------------------------------------------------------------------------------ */

int64_t trek_now_ns(void)
{
    if (sim.running)
        sim.now_ns += 20;
    return sim.now_ns;
}

/* The library's clock, below distributed/. The linker sends its calls here (--wrap). */
int64_t __wrap_trek_clock_ns(void) { return sim.running ? trek_now_ns() : __real_trek_clock_ns(); }

void trek_sleep_until_ns(int64_t until_ns)
{
    sim_point("sleep");
    while (sim.now_ns < until_ns)
        sim_wait(until_ns, "sleep");
}

void trek_sleep_ns(int64_t ns) { trek_sleep_until_ns(sim.now_ns + ns); }
void trek_busy_until_ns(int64_t until_ns) { trek_sleep_until_ns(until_ns); }

/* --- locks ------------------------------------------------------------------------------------------------------------------ */

static void enqueue(sim_thread **waiting)
{
    sim.running->next_waiting = *waiting;
    *waiting = sim.running;
}

/* Whether it was there. */
static bool dequeue(sim_thread **waiting, const sim_thread *thread)
{
    for (; *waiting; waiting = &(*waiting)->next_waiting)
        if (*waiting == thread) {
            *waiting = thread->next_waiting;
            return true;
        }
    return false;
}

/* Any of those who wait. */
static sim_thread *draw_waiting(sim_thread **waiting)
{
    int n = 0;
    for (sim_thread *t = *waiting; t; t = t->next_waiting)
        n++;
    sim_thread *chosen = *waiting;
    for (int64_t k = sim_below(&sim.random, n); k > 0; k--)
        chosen = chosen->next_waiting;
    if (chosen)
        dequeue(waiting, chosen);
    return chosen;
}

bool trek_lock_init(trek_lock *lock)
{
    *lock = (trek_lock)TREK_LOCK_INIT;
    return true;
}

void trek_lock_destroy(trek_lock *lock)
{
    if (lock->holder || lock->waiting)
        sim_fail("process %d: a lock is destroyed that is held or waited for", sim_here()->number);
}

static bool acquire(trek_lock *lock, int64_t until_ns)
{
    if (lock->holder == sim.running)
        sim_fail("process %d: a thread waits for a lock that it holds itself", sim.running->process->number);
    while (lock->holder) {
        enqueue(&lock->waiting);
        bool woken = sim_wait(until_ns, "lock");
        if (!woken) {
            dequeue(&lock->waiting, sim.running);
            if (lock->holder)
                return false;
        }
    }
    lock->holder = sim.running;
    return true;
}

void trek_lock_acquire(trek_lock *lock)
{
    sim_point("lock");
    acquire(lock, SIM_NEVER);
}

static void release(trek_lock *lock)
{
    if (lock->holder != sim.running)
        sim_fail("process %d: a thread releases a lock that it does not hold", sim.running->process->number);
    lock->holder = NULL;
    sim_thread *next = draw_waiting(&lock->waiting);
    if (next)
        sim_wake(next);
}

void trek_lock_release(trek_lock *lock)
{
    release(lock);
    sim_point("unlock");
}

bool trek_lock_try(trek_lock *lock)
{
    sim_point("try a lock");
    if (lock->holder)
        return false;
    lock->holder = sim.running;
    return true;
}

bool trek_lock_acquire_within(trek_lock *lock, int64_t ns)
{
    sim_point("lock within");
    return acquire(lock, sim.now_ns + ns);
}

/* --- conditions ---------------------------------------------------------------------------------------------------------------
 */

bool trek_condition_init(trek_condition *condition)
{
    *condition = (trek_condition)TREK_CONDITION_INIT;
    return true;
}

void trek_condition_destroy(trek_condition *condition)
{
    if (condition->waiting)
        sim_fail("process %d: a condition is destroyed that is waited for", sim_here()->number);
}

static bool wait_for(trek_condition *condition, trek_lock *lock, int64_t until_ns)
{
    sim_point("wait");
    enqueue(&condition->waiting);
    release(lock);
    if (sim_chance(&sim.random, sim.settings.spurious))
        sim_at(sim.now_ns + sim_below(&sim.random, 2 * SIM_MS), end_wait, sim.running, sim.running->wait);
    sim_wait(until_ns, "condition");
    bool waited = dequeue(&condition->waiting, sim.running);
    acquire(lock, SIM_NEVER);
    return !waited || sim.now_ns < until_ns;
}

void trek_condition_wait(trek_condition *condition, trek_lock *lock) { wait_for(condition, lock, SIM_NEVER); }

bool trek_condition_wait_until(trek_condition *condition, trek_lock *lock, int64_t until_ns)
{
    return wait_for(condition, lock, until_ns);
}

void trek_condition_wake_all(trek_condition *condition)
{
    while (condition->waiting)
        sim_wake(draw_waiting(&condition->waiting));
    sim_point("wake");
}

void trek_condition_wake_one(trek_condition *condition)
{
    if (condition->waiting)
        sim_wake(draw_waiting(&condition->waiting));
    sim_point("wake");
}

/* --- words
 * ----------------------------------------------------------------------------------------------------------------------- */

bool trek_word_wait(atomic_uint *word, unsigned value, bool shared, int64_t until_ns)
{
    sim_point("word");
    if (until_ns && sim.now_ns >= until_ns)
        return false;
    if (atomic_load(word) != value)
        return true;
    sim.running->word = sim_word_key(word, shared);
    if (sim_chance(&sim.random, sim.settings.spurious))
        sim_at(sim.now_ns + sim_below(&sim.random, 2 * SIM_MS), end_wait, sim.running, sim.running->wait);
    sim_wait(until_ns ? until_ns : SIM_NEVER, "word");
    sim.running->word = NULL;
    return true;
}

void trek_word_wake(atomic_uint *word, bool shared)
{
    const void *key = sim_word_key(word, shared);
    sim_point("wake a word");
    for (int p = 0; p < sim.n_processes; p++) /* in an order of theirs: the draw is the scheduler's */
        for (sim_thread *t = shared ? sim.processes[p]->threads : NULL; t; t = t->next)
            if (t->word == key)
                sim_wake(t);
    for (sim_thread *t = shared ? NULL : sim.running->process->threads; t; t = t->next)
        if (t->word == key)
            sim_wake(t);
}

bool trek_word_spins(void) { return false; }

/* --- one schedule
 * ------------------------------------------------------------------------------------------------------------------ */

void sim_reset(uint64_t seed)
{
    sim_event *events = sim.events;
    sim_thread **ready = sim.ready;
    int cap_events = sim.cap_events, cap_ready = sim.cap_ready;
    memset(&sim, 0, sizeof sim);
    sim.events = events;
    sim.ready = ready;
    sim.cap_events = cap_events;
    sim.cap_ready = cap_ready;
    sim.seed = seed;
    sim_random seeds = { seed };
    sim.random.state = sim_draw(&seeds);
    sim.chance.state = sim_draw(&seeds) ^ 0x5851f42d4c957f2du;
    sim.nonces.state = sim_draw(&seeds);
    sim.hash = 0xcbf29ce484222325u;
    sim.now_ns = 1000 * SIM_S;
    sim.next_port = 40000;
    sim.next_file = 1;
    test = fiber_begin();
}

void sim_run(void)
{
    trek_job_context own = trek_job_here;
    go_on();
    trek_job_here = own;
}

void sim_clear(void)
{
    for (int p = 0; p < sim.n_processes; p++) {
        sim_process *process = sim.processes[p];
        if (process->end == SIM_ALIVE)
            sim_process_kill(process, SIM_KILLED);
        free_own(&process->own);
        free(process);
    }
    sim.n_processes = 0;
    sim_network_clear();
    while (all_threads) {
        sim_thread *next = all_threads->next;
        free(all_threads);
        all_threads = next;
    }
    while (old_tapes) {
        trek_tape *next = old_tapes->next_orphan;
        free(old_tapes);
        old_tapes = next;
    }
    sim.n_events = sim.n_ready = 0;
}

/* --- what belongs to a thread, or a process
 * ------------------------------------------------------------------------------------------ */

static void *own_of(sim_own **list, const void *initial, size_t size)
{
    for (sim_own *own = *list; own; own = own->next)
        if (own->key == initial)
            return own->value;
    sim_own *own = aligned_alloc(64, (sizeof *own + size + 63) / 64 * 64);
    if (!own)
        abort();
    own->key = initial;
    own->next = *list;
    memcpy(own->value, initial, size);
    *list = own;
    return own->value;
}

static sim_own *of_test; /* the test's own calls, outside of a schedule */

void *trek_process_own(const void *initial, size_t size)
{
    return own_of(sim.running ? &sim.running->process->own : &of_test, initial, size);
}

void *trek_thread_own(const void *initial, size_t size)
{
    return own_of(sim.running ? &sim.running->own : &of_test, initial, size);
}
