/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to process 0, which its control thread answers while its other threads compute. */
#include <string.h>

#include "distributed/control/control_internal.h"
#include "tensor/memory_internal.h"

int trek_control_subject(trek_control *control, trek_control_answer_fn fn, void *arg)
{
    trek_lock_acquire(&control->lock);
    int subject = control->n_subjects < TREK_CONTROL_SUBJECTS ? control->n_subjects++ : -1;
    if (subject >= 0)
        control->subjects[subject] = (trek_control_subject_state){ .fn = fn, .arg = arg };
    trek_lock_release(&control->lock);
    return subject;
}

void trek_control_drop_subject(trek_control *control, int subject)
{
    trek_lock_acquire(&control->lock);
    control->subjects[subject] = (trek_control_subject_state){ .fn = NULL };
    trek_lock_release(&control->lock);
}

/* On process 0. A subject that it does not know has zeros for an answer. */
static void find_answer(const trek_control *control, int process, uint64_t number, const int64_t *question, int64_t count,
                        int64_t *answer)
{
    int64_t subject = question[0];
    memset(answer, 0, TREK_CONTROL_ANSWERS * sizeof *answer);
    if (subject >= 0 && subject < control->n_subjects && control->subjects[subject].fn)
        control->subjects[subject].fn(control->subjects[subject].arg, process, number, question, count, answer);
}

void trek_control_ask(trek_control *control, int subject, uint64_t number, int64_t *question, int64_t count)
{
    if (trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    trek_control_subject_state *of = &control->subjects[subject];
    question[0] = subject;
    of->asked = number;
    of->has_answer = control->process == 0;
    if (control->process == 0)
        find_answer(control, 0, number, question, count, of->answer);
    else
        trek_control_send(control, &control->links[0], TREK_CONTROL_ASK, number, question, (size_t)count * sizeof *question);
    trek_control_ask_left(control);
    trek_lock_release(&control->lock);
}

trek_status trek_control_answer(trek_control *control, int subject, bool wait, int64_t *answer, bool *has)
{
    trek_lock_acquire(&control->lock);
    const trek_control_subject_state *of = &control->subjects[subject];
    while (wait && !of->has_answer && !atomic_load(&control->ended) && !trek_forked)
        trek_condition_wait(&control->changed, &control->lock);
    *has = of->has_answer;
    memcpy(answer, of->answer, sizeof of->answer);
    trek_lock_release(&control->lock);
    return *has || !wait ? TREK_OK : trek_control_fail(control);
}

void trek_control_take_question(trek_control *control, trek_control_link *link, uint64_t number, const char *data, size_t bytes)
{
    int64_t answer[1 + TREK_CONTROL_ANSWERS], count = (int64_t)(bytes / sizeof *answer);
    if (control->process != 0 || atomic_load(&control->ended) || count < 1 || bytes % sizeof *answer)
        return;
    int64_t *question = trek_alloc(bytes); /* aligned */
    if (!question) {
        trek_error_clear();
        trek_control_end_locked(control, TREK_ERR_MEMORY, "the control channel has no memory for a question");
        return;
    }
    memcpy(question, data, bytes);
    answer[0] = question[0];
    find_answer(control, link->process, number, question, count, answer + 1);
    trek_free(question);
    trek_control_send(control, link, TREK_CONTROL_ANSWER, number, answer, sizeof answer);
}

void trek_control_take_answer(trek_control *control, const trek_control_link *link, uint64_t number, const char *data,
                              size_t bytes)
{
    int64_t answer[1 + TREK_CONTROL_ANSWERS];
    if (link->process != 0 || bytes != sizeof answer)
        return;
    memcpy(answer, data, sizeof answer);
    if (answer[0] < 0 || answer[0] >= control->n_subjects)
        return;
    trek_control_subject_state *of = &control->subjects[answer[0]];
    if (of->asked != number || of->has_answer)
        return;
    memcpy(of->answer, answer + 1, sizeof of->answer);
    of->has_answer = true;
    trek_condition_wake_all(&control->changed);
}
