/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 (Radford and others, 2019) with the published weights: generates text, and can be trained further.
 *
 *   gpt2 --model FOLDER --prompt "Once upon a time"              generates text
 *   gpt2 --model FOLDER --data text.txt --export NEW             trains further with a text, and writes the result to NEW
 *   gpt2 --model FOLDER --data tokens.bin --batch-size 4         trains further with token numbers of 16 bits each
 *
 * FOLDER has Hugging Face's files: config.json, model.safetensors (in parts or not), and vocab.json with merges.txt or
 * tokenizer.json. The smallest GPT-2 has 124 million parameters; all models of its form can be read. Without --model the model is
 * a small new one whose tokens are bytes; it is trained with --data or with generated sentences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt2_model.h"
#include "text.h"
#include "training.h"

typedef struct options {
    training common;
    int window, length, top_k;
    double temperature;
    const char *model, *prompt, *folder;
    gpt2_config shape;
    trek_tokenizer *tokenizer; /* NULL: tokens are bytes */
} options;

/* --- texts ------------------------------------------------------------------------------------------ */

/* A text's tokens, *n of them; the caller frees them. */
static int64_t *encode(const options *o, const char *text, size_t bytes, int64_t *n)
{
    int64_t *ids = malloc((bytes + 1) * sizeof *ids); /* there are at most as many tokens as bytes */
    *n = !ids           ? 0
         : o->tokenizer ? trek_tokenizer_encode_to(o->tokenizer, text, bytes, NULL, ids, (int64_t)bytes)
                        : (int64_t)bytes;
    for (size_t i = 0; ids && !o->tokenizer && i < bytes; i++)
        ids[i] = (unsigned char)text[i];
    return ids;
}

/* "input" and "target" of a file of tokens (NAME.bin) or of a text. */
static trek_dataset *training_set(const options *o)
{
    const char *path = o->common.data;
    if (path && strlen(path) > 4 && strcmp(path + strlen(path) - 4, ".bin") == 0)
        return trek_dataset_token_shards(&path, 1, o->window);
    FILE *file = path ? fopen(path, "rb") : NULL;
    int64_t n = 0, length = 60000;
    if (path && (!file || fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0))
        trek_fail(TREK_ERR_IO, "%s cannot be read", path);
    char *text = trek_error_status() != TREK_OK ? NULL : file ? malloc((size_t)length + 1) : text_made_up(length, 1);
    if (file && text)
        length = (int64_t)fread(text, 1, (size_t)length, file);
    int64_t *ids = text ? encode(o, text, (size_t)length, &n) : NULL;
    int64_t windows = n > 0 ? (n - 1) / o->window : 0;
    trek_tensor *fields[2];
    for (int k = 0; k < 2; k++)
        fields[k] = ids ? trek_tensor_from_data(ids + (windows ? k : 0), trek_dims(windows, o->window), TREK_I64, trek_cpu(0))
            : NULL;
    trek_dataset *set = !ids ? NULL : trek_dataset_tensors((const char *const[]){ "input", "target" }, fields, 2);
    trek_tensor_release(fields[0]);
    trek_tensor_release(fields[1]);
    if (file)
        fclose(file);
    free(ids);
    free(text);
    return set;
}

static bool print_token(int64_t row, int64_t token, void *arg)
{
    const options *o = arg;
    size_t bytes = 1;
    char byte = (char)token;
    const char *text = o->tokenizer ? trek_tokenizer_token(o->tokenizer, token, &bytes) : &byte;
    (void)row;
    if (text)
        fwrite(text, 1, bytes, stdout);
    return !fflush(stdout);
}

/* The prompt, and what goes on from it, token by token as they come. */
static void write_text(trek_module *model, options *o)
{
    int64_t n, count;
    int64_t *prompt = encode(o, o->prompt, strlen(o->prompt), &n), *made = malloc(((size_t)o->length + 1) * sizeof *made);
    const int64_t *prompts = prompt, end = o->tokenizer ? trek_tokenizer_id(o->tokenizer, "<|endoftext|>", 13) : -1;
    trek_module_train(model, false);
    int64_t room = o->shape.positions - n;
    trek_generate_opts opts = {
        .sample         = { .temperature = o->temperature == 0 ? TREK_ZERO : o->temperature, .top_k = o->top_k,
                            .seed = o->common.seed },
        .max_new_tokens = o->length < room ? o->length : room,
        .eos            = &end,
        .n_eos          = end >= 0,
        .on_token       = print_token,
        .arg            = o,
    };
    printf("%s", o->prompt);
    if (prompt && made && n > 0 && opts.max_new_tokens > 0)
        trek_generate(model, &prompts, &n, 1, &opts, made, &count);
    printf("\n");
    free(prompt);
    free(made);
}

/* --- training ----------------------------------------------------------------------------------------- */

/* Called for each rank. */
static trek_graph *build_model(trek_device device, void *arg)
{
    const options *o = arg;
    return trek_flow_build(trek_flow_label(trek_flow_from(gpt2_new(&o->shape, o->model, device)), "gpt2"));
}

static trek_var *mean_loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(trek_flatten(logits, 0, 1), trek_flatten(trek_batch_get(batch, "target"), 0, 1));
}

/* The trained state; NULL and an error if it failed. */
static trek_state *train(options *o, bool first)
{
    const training *k = &o->common;
    trek_dataset *set = training_set(o);
    trek_run *run = !set ? NULL : trek_trainer_run(&(trek_run_opts){
        .build_model       = build_model,
        .train_step        = mean_loss,
        .arg               = o,
        .dataset           = set,
        .input             = "input",
        .optimizer         = trek_adamw(&(trek_adam_opts){ .lr = k->lr, .weight_decay = 0.01 }),
        .batch_size        = k->batch_size,
        .shuffle           = true,
        .epochs            = k->epochs,
        .seed              = k->seed,
        .trainer           = { .ranks = k->ranks, .max_grad_norm = 1 },
        .checkpoint_folder = k->checkpoint,
        .resume_from       = k->checkpoint,
    });
    trek_progress *progress = first && !k->quiet ? trek_progress_new(k->epochs, 0) : NULL;
    for (trek_epoch_metrics m; run && trek_run_next(run, &m); ) {
        trek_progress_update(progress, m.epoch, m.steps, m.loss);
        trek_progress_epoch(progress, m.epoch, "perplexity", exp(m.loss));
        if (first && m.epoch + 1 == k->epochs)
            printf("training loss %.4f\n", m.loss);
    }
    trek_progress_free(&progress);
    trek_dataset_free(&set);
    return run ? trek_run_join(run) : NULL;
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 6, .batch_size = 16, .seed = 1, .lr = 1e-3 }, .window = 64,
                  .length = 60, .top_k = 50, .temperature = 0.7, .prompt = "the ",
                  .shape = { .vocabulary = 256, .positions = 256, .width = 64, .layers = 2, .heads = 4 } };
    const argument own[] = {
        { "--model", "FOLDER", "folder with weights, configuration and tokenizer (default: a small new model)",
          .text = &o.model },
        { "--export", "FOLDER", "writes the trained model to this existing folder, for transformers",
          .text = &o.folder },
        { "--window", "N", "tokens of a sample", .whole = &o.window, .least = 1, .most = 65536 },
        { "--prompt", "TEXT", "beginning of the generated text", .text = &o.prompt },
        { "--length", "N", "tokens to write", .whole = &o.length, .least = 0 },
        { "--temperature", "X", "temperature; 0: always the most probable token", .number = &o.temperature, .least = 0,
          .most = 1e3 },
        { "--top-k", "N", "number of most probable tokens to draw from; 0: all", .whole = &o.top_k, .least = 0 },
    };
    training_read(argc, argv,
                  "Generates text with GPT-2, and trains it further. With --model it is trained only if --data is given.",
                  &o.common, own, sizeof own / sizeof *own);
    training_stop_by_signals();
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    bool first = trek_comm_rank(job) == 0, trains = !o.model || o.common.data;
    trek_seed(o.common.seed);
    bool ready = job && (!o.model || (gpt2_config_read(&o.shape, o.model) == TREK_OK &&
                                      (o.tokenizer = trek_tokenizer_read(o.model))));
    if (ready && trains && o.window > o.shape.positions)
        trek_fail(TREK_ERR_ARGUMENT, "--window is at most %d, the model's positions", (int)o.shape.positions);
    trek_state *trained = ready && trains && trek_error_status() == TREK_OK ? train(&o, first) : NULL;
    if (ready && first && trek_error_status() == TREK_OK && !trek_stop_requested()) {
        trek_module *model = gpt2_new(&o.shape, trained ? NULL : o.model, trek_device_default());
        const trek_state_rule inner = { .from = "gpt2.**", .to = "**" };
        if (trained)
            trek_state_apply_with(trained, model, &(trek_state_load_opts){ .rules = &inner, .n_rules = 1 }, NULL);
        if (trek_error_status() == TREK_OK)
            write_text(model, &o);
        if (o.common.save && trained && trek_error_status() == TREK_OK)
            trek_state_save(model, o.common.save);
        if (o.folder && trek_error_status() == TREK_OK)
            gpt2_export(model, &o.shape, o.folder);
        trek_module_free(&model);
    }
    trek_state_free(&trained);
    trek_tokenizer_free(&o.tokenizer);
    trek_comm_free(&job);
    return training_end();
}
