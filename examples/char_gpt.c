/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small GPT that generates text character by character. The library owns the loop, on any number of ranks. The result
 * generates text by trek_generate, with a cache of keys and values.
 *
 *   char_gpt --help                 its options
 *   trek-run -n 2 ./char_gpt ...    the same on two processes
 *
 * --data: a text, such as tinyshakespeare's input.txt (default: tinyshakespeare/input.txt in TREK_DATA if it exists; otherwise
 * generated sentences). At the end the program prints --length characters that continue --prompt. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#include "text.h"
#include "training.h"

typedef struct options {
    training common;
    int window, width, heads, layers, length;
    double temperature;
    const char *prompt;
    text text;
} options;

/* Characters as numbers [N, T] -> logits [N, T, characters]. */
typedef struct gpt {
    trek_module base;
    trek_module *letters, *places, *blocks, *head;
} gpt;

static trek_var *gpt_forward(trek_module *self, trek_var *characters)
{
    gpt *m = (gpt *)self;
    trek_var *places = trek_forward(m->places, trek_token_positions(characters)); /* 0, 1, ..; behind a cache further */
    trek_var *x = trek_forward(m->blocks, trek_add(trek_forward(m->letters, characters), places));
    return trek_forward(m->head, trek_last_positions(x)); /* all of them, but the last one in trek_generate */
}

static const trek_module_class gpt_class = { .name = "gpt", .size = sizeof(gpt), .forward = gpt_forward };

static trek_graph *build_model(trek_device device, void *arg)
{
    const options *o = arg;
    trek_module *m = trek_module_new(&gpt_class);
    trek_module_add(m, "letters", offsetof(gpt, letters), trek_nn_embedding(o->text.n_letters, o->width, device));
    trek_module_add(m, "places", offsetof(gpt, places), trek_nn_embedding(o->window, o->width, device));
    trek_module_add(m, "blocks", offsetof(gpt, blocks), trek_nn_transformer_encoder_with(&(trek_transformer_opts){
        .d_model = o->width, .heads = o->heads, .dim_feedforward = 4 * (int64_t)o->width, .layers = o->layers, .dropout = 0.1,
        .activation = TREK_ACTIVATION_GELU, .norm_first = true, .final_norm = true, .causal = true, .device = device }));
    trek_module_add(m, "head", offsetof(gpt, head), trek_nn_linear(o->width, o->text.n_letters, device));
    return trek_flow_build(trek_flow_from(trek_module_check(m)));
}

/* The loss of a batch, on whatever rank has it. */
static trek_var *mean_loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(trek_flatten(logits, 0, 1), trek_flatten(trek_batch_get(batch, "target"), 0, 1));
}

/* Trains; the result, NULL and an error if it failed. *test_loss: the last epoch's, NaN if nothing was left to train. */
static trek_state *train(options *o, bool first, double *test_loss)
{
    const training *k = &o->common;
    int64_t steps = k->epochs * ((trek_dataset_length(o->text.train) + k->batch_size - 1) / k->batch_size);
    trek_run *run = trek_trainer_run(&(trek_run_opts){
        .build_model       = build_model,
        .train_step        = mean_loss,
        .arg               = o,
        .dataset           = o->text.train,
        .input             = "input",
        .optimizer         = trek_adamw(&(trek_adam_opts){ .lr = k->lr, .weight_decay = 0.01 }),
        .schedule          = trek_warmup_lr(steps / 20, trek_cosine_lr(k->lr, steps, k->lr / 10)),
        .batch_size        = k->batch_size,
        .shuffle           = true,
        .epochs            = k->epochs,
        .seed              = k->seed,
        .trainer           = { .ranks = k->ranks, .max_grad_norm = 1 },
        .evaluation        = o->text.test,
        .checkpoint_folder = k->checkpoint,
        .resume_from       = k->checkpoint,
    });
    trek_progress *progress = first && !k->quiet ? trek_progress_new(k->epochs, steps / k->epochs) : NULL;
    trek_run_progress at = { .running = run != NULL };
    for (trek_epoch_metrics m; run && trek_run_look(run, &at) == TREK_OK; ) {
        bool ended = !at.running; /* read first: then everything that it has reported is in the queue */
        for (; trek_run_poll(run, &m); *test_loss = m.evaluation_loss)
            trek_progress_epoch(progress, m.epoch, "test loss", m.evaluation_loss);
        if (ended)
            break;
        trek_progress_update(progress, at.epoch, at.batch, at.loss);
        thrd_sleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    trek_progress_free(&progress);
    return run ? trek_run_join(run) : NULL;
}

/* The prompt, and `length` characters that go on from it: half a window at a time, from what stands before. */
static void write_text(trek_module *model, const options *o)
{
    int64_t half = o->window / 2, n = 0, made = 0, *all = malloc((strlen(o->prompt) + (size_t)o->length + 1) * sizeof *all);
    for (const char *at = o->prompt; all && *at; at++)
        if (text_number(&o->text, *at) >= 0) /* what it has never seen is passed over */
            all[n++] = text_number(&o->text, *at);
    trek_module_train(model, false);
    for (int64_t count; all && n > 0 && half > 0 && made < o->length; made += count, n += count) {
        const int64_t length = n < half ? n : half, *prompt = all + n - length;
        trek_generate_opts opts = { .sample = { .temperature = o->temperature, .seed = o->common.seed + (uint64_t)made },
                                    .max_new_tokens = o->length - made < half ? o->length - made : half };
        if (trek_generate(model, &prompt, &length, 1, &opts, all + n, &count) != TREK_OK)
            break;
    }
    for (int64_t i = 0; all && i < n; i++)
        putchar(o->text.letters[all[i]]);
    putchar('\n');
    free(all);
}

/* What the run has come to, in a model that is made for it. */
static void finish(options *o, trek_state *trained, double test_loss)
{
    trek_graph *graph = build_model(trek_device_default(), o);
    if (trek_state_apply(trained, trek_graph_module(graph)) == TREK_OK) {
        write_text(trek_graph_module(graph), o);
        if (!isnan(test_loss))
            printf("test loss %.4f\n", test_loss);
        if (o->common.save)
            trek_state_write(trained, o->common.save);
    }
    trek_graph_free(&graph);
}

int main(int argc, char **argv)
{
    options o = { .common = { .shared = "tinyshakespeare/input.txt", .epochs = 10, .batch_size = 32, .lr = 3e-3, .seed = 1 },
                  .window = 64, .width = 64, .heads = 4,
                  .layers = 2, .length = 200, .temperature = 0.7, .prompt = "the " };
    const argument own[] = {
        { "--window", "N", "characters of a sample", .whole = &o.window, .least = 2, .most = 65536 },
        { "--width", "N", "width of the model; a multiple of --heads", .whole = &o.width, .least = 1, .most = 65536 },
        { "--heads", "N", "of attention", .whole = &o.heads, .least = 1, .most = 1024 },
        { "--layers", "N", "number of layers", .whole = &o.layers, .least = 1, .most = 1024 },
        { "--prompt", "TEXT", "beginning of the generated text", .text = &o.prompt },
        { "--length", "N", "characters to write", .whole = &o.length, .least = 0 },
        { "--temperature", "X", "of drawing them", .number = &o.temperature, .least = 1e-3, .most = 1e3 },
    };
    training_read(argc, argv, "Trains a small GPT that generates text character by character.", &o.common, own, 7);
    training_stop_by_signals();
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    bool first = trek_comm_rank(job) == 0;
    double test_loss = NAN;
    trek_seed(o.common.seed);
    o.text = text_open(training_data(&o.common, "tinyshakespeare/input.txt", NULL), o.window, 60000);
    trek_state *trained = job && o.text.whole ? train(&o, first, &test_loss) : NULL;
    if (trained && first && !trek_stop_requested())
        finish(&o, trained, test_loss);
    trek_state_free(&trained);
    text_close(&o.text);
    trek_comm_free(&job);
    return training_end();
}
