/* SPDX-License-Identifier: Apache-2.0 */
/* Trains an LSTM that generates text character by character: a module of your own, which trek_fit trains in place.
 *
 *   char_rnn --help                 its options
 *   trek-run -n 2 ./char_rnn ...    the same on two processes
 *
 * --data: a text, such as tinyshakespeare's input.txt (default: tinyshakespeare/input.txt in TREK_DATA if it exists; otherwise
 * generated sentences). At the end the program prints --length characters that continue --prompt. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "text.h"
#include "training.h"

typedef struct options {
    training common;
    int window, width, length;
    double temperature;
    const char *prompt;
} options;

/* Characters as numbers [N, T] -> logits [N, T, characters]. */
typedef struct char_rnn {
    trek_module base;
    trek_module *letters, *lstm, *head;
} char_rnn;

/* h and c: the state, from which it goes on and in which it ends; NULL: from zeros, and forgotten. */
static trek_var *read_on(char_rnn *m, trek_var *characters, trek_var **h, trek_var **c)
{
    trek_var *x = trek_forward(m->letters, characters);
    return trek_forward(m->head, trek_nn_lstm_forward(m->lstm, x, NULL, h ? *h : NULL, c ? *c : NULL, h, c));
}

static trek_var *char_rnn_forward(trek_module *self, trek_var *characters)
{
    return read_on((char_rnn *)self, characters, NULL, NULL);
}

static const trek_module_class char_rnn_class = { .name = "char_rnn", .size = sizeof(char_rnn), .forward = char_rnn_forward };

static trek_module *char_rnn_new(int64_t letters, int64_t width, trek_device device)
{
    trek_module *m = trek_module_new(&char_rnn_class);
    trek_module_add(m, "letters", offsetof(char_rnn, letters), trek_nn_embedding(letters, width / 2, device));
    trek_module_add(m, "lstm", offsetof(char_rnn, lstm), trek_nn_lstm_with(&(trek_lstm_opts){
        .in = width / 2, .hidden = width, .layers = 2, .batch_first = true, .device = device }));
    trek_module_add(m, "head", offsetof(char_rnn, head), trek_nn_linear(width, letters, device));
    return trek_module_check(m);
}

/* What the run's functions are given. */
typedef struct watch {
    trek_progress *progress; /* NULL: no line */
    int64_t epoch, batch;
    double test_loss;
} watch;

static trek_var *mean_loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(trek_flatten(logits, 0, 1), trek_flatten(trek_batch_get(batch, "target"), 0, 1));
}

static trek_var *train_step(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    watch *w = arg;
    trek_var *loss = mean_loss(graph, logits, batch, arg);
    trek_progress_update(w->progress, w->epoch, ++w->batch, w->progress ? trek_var_item(loss) : NAN);
    return loss;
}

static trek_status on_epoch(trek_graph *graph, int64_t epoch, void *arg)
{
    watch *w = arg;
    (void)graph;
    w->epoch = epoch, w->batch = 0;
    return TREK_OK;
}

static trek_status on_metrics(const trek_epoch_metrics *m, void *arg)
{
    watch *w = arg;
    w->test_loss = m->evaluation_loss;
    trek_progress_epoch(w->progress, m->epoch, "test loss", m->evaluation_loss);
    return TREK_OK;
}

static trek_var *one_number(int64_t number, trek_device device)
{
    return trek_var_from(trek_tensor_from_data(&number, trek_dims(1, 1), TREK_I64, device));
}

/* Reads the prompt, and writes what comes to it: the state goes from each character to the next. */
static void write_text(trek_module *model, const text *t, const options *o, trek_device device)
{
    char_rnn *m = (char_rnn *)model;
    trek_scope scope = trek_scope_begin();
    trek_module_train(model, false);
    trek_no_grad_begin();
    trek_var *h = NULL, *c = NULL, *logits = NULL;
    for (const char *at = o->prompt; *at; at++) {
        int64_t number = text_number(t, *at);
        putchar(*at);
        if (number >= 0) /* what it has never seen is passed over */
            logits = read_on(m, one_number(number, device), &h, &c);
    }
    for (int k = 0; logits && k < o->length; k++) {
        int64_t next;
        trek_sample_opts draw = { .temperature = o->temperature, .seed = o->common.seed, .step = (uint64_t)k };
        if (trek_sample_logits(trek_select(logits, 1, 0), &draw, &next) != TREK_OK)
            break;
        putchar(t->letters[next]);
        logits = read_on(m, one_number(next, device), &h, &c);
    }
    putchar('\n');
    trek_no_grad_end();
    trek_scope_end(scope);
}

static void run(const options *o, trek_comm *job)
{
    const training *k = &o->common;
    trek_device device = trek_device_default();
    bool first = trek_comm_rank(job) == 0;
    trek_seed(k->seed);
    text t = text_open(training_data(k, "tinyshakespeare/input.txt", NULL), o->window, 60000);
    trek_module *model = t.whole ? char_rnn_new(t.n_letters, o->width, device) : NULL;
    watch w = { .test_loss = NAN };
    if (model && first && !k->quiet)
        w.progress = trek_progress_new(k->epochs, (trek_dataset_length(t.train) + k->batch_size - 1) / k->batch_size);
    trek_status status = !model ? trek_error_status() : trek_fit(model, &(trek_run_opts){
        .dataset           = t.train,
        .input             = "input",
        .train_step        = train_step,
        .optimizer         = trek_adam(&(trek_adam_opts){ .lr = k->lr }),
        .batch_size        = k->batch_size,
        .shuffle           = true,
        .epochs            = k->epochs,
        .seed              = k->seed,
        .trainer           = { .max_grad_norm = 1 },
        .evaluation        = t.test,
        .evaluate          = mean_loss,
        .checkpoint_folder = k->checkpoint,
        .resume_from       = k->checkpoint,
        .on_epoch          = on_epoch,
        .on_metrics        = on_metrics,
        .arg               = &w,
    });
    trek_progress_free(&w.progress);
    if (status == TREK_OK && first && !trek_stop_requested()) {
        write_text(model, &t, o, device);
        if (!isnan(w.test_loss)) /* otherwise nothing was left to train */
            printf("test loss %.4f\n", w.test_loss);
        if (k->save)
            trek_state_save(model, k->save);
    }
    trek_module_free(&model);
    text_close(&t);
}

int main(int argc, char **argv)
{
    options o = { .common = { .shared = "tinyshakespeare/input.txt", .epochs = 6, .batch_size = 32, .lr = 3e-3, .seed = 1,
                              .without = "--ranks" },
                  .window = 64, .width = 128, .length = 200, .temperature = 0.7, .prompt = "the " };
    const argument own[] = {
        { "--window", "N", "characters of a sample", .whole = &o.window, .least = 1, .most = 65536 },
        { "--width", "N", "size of the LSTM's state", .whole = &o.width, .least = 2, .most = 65536 },
        { "--prompt", "TEXT", "beginning of the generated text", .text = &o.prompt },
        { "--length", "N", "characters to write", .whole = &o.length, .least = 0 },
        { "--temperature", "X", "of drawing them", .number = &o.temperature, .least = 1e-3, .most = 1e3 },
    };
    training_read(argc, argv, "Trains an LSTM that generates text character by character.", &o.common, own, 5);
    training_stop_by_signals();
    trek_comm *job = trek_comm_init(NULL); /* the processes, where there are several */
    if (job)
        run(&o, job);
    trek_comm_free(&job);
    return training_end();
}
