/* SPDX-License-Identifier: Apache-2.0 */
/* Trains an encoder of BERT's form (Devlin and others, 2019) that assigns the texts of a table to classes.
 *
 *   bert --data reviews.csv --text review --label opinion
 *   bert --data reviews.csv --model FOLDER        begins with RoBERTa's weights (Liu and others, 2019), in Hugging Face's files:
 *                                                 config.json, model.safetensors, vocab.json and merges.txt
 *
 * The first row of the table names its columns; labels are words or numbers. Every tenth row is for testing. Without --model the
 * encoder is a small new one whose tokens are bytes. Without --data the program writes a table bert.csv of sentences, some of
 * which are complaints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bert_model.h"
#include "training.h"

typedef struct options {
    training common;
    int window;
    const char *text, *label, *model;
    bert_config shape;
    trek_tokenizer *tokenizer; /* NULL: token k + 3 is byte k */
} options;

/* --- the table --------------------------------------------------------------------------------------- */

/* Sentences for machines without data, as a table of them: what somebody says of something. */
static bool write_table(const char *path, int rows)
{
    static const char *const things[] = { "soup", "hotel", "novel", "concert", "train", "garden", "lamp", "film" };
    static const char *const words[2][6] = { { "awful", "broken", "a waste of money", "too loud", "dull", "a disappointment" },
                                             { "wonderful", "a delight", "worth every penny", "superb", "charming",
                                               "a success" } };
    FILE *file = fopen(path, "w");
    if (!file)
        return trek_fail(TREK_ERR_IO, "%s cannot be written", path), false;
    uint64_t random = 1;
    fprintf(file, "text,label\n");
    for (int i = 0; i < rows; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int good = (int)(random >> 40) % 2, word = (int)(random >> 43) % 6, thing = (int)(random >> 47) % 8;
        bool isnt = (random >> 55) % 3 == 0; /* which turns the meaning */
        fprintf(file, "\"The %s, I %s, %s %s.\",%s\n", things[thing], (random >> 51) % 2 ? "think" : "must say",
                isnt ? "is not" : "is",
                words[good][word], good != isnt ? "good" : "bad");
    }
    return fclose(file) == 0;
}

/* The texts of the table, and what turns them into tokens; the map's own. */
typedef struct texts {
    const options *o;
    const char *const *words; /* the table's, which knows texts as categories, by number */
} texts;

/* "text" (numbers of texts) and "label" -> "tokens" i64 [n, window], padded, and "label". */
static trek_status tokens_of(const trek_fetch *of, trek_tensor *const *in, trek_tensor **out, void *arg)
{
    const texts *t = arg;
    int window = t->o->window;
    out[0] = trek_tensor_empty(trek_dims(of->n, window), TREK_I64, trek_cpu(0));
    out[1] = trek_tensor_retain(in[1]);
    const int64_t *numbers = trek_tensor_data(in[0]);
    for (int64_t i = 0; out[0] && i < of->n; i++) {
        int64_t *row = (int64_t *)trek_tensor_data(out[0]) + i * window, n = 0;
        const char *text = t->words[numbers[i]];
        for (int k = 0; k < window; k++)
            row[k] = PAD;
        if (t->o->tokenizer)
            n = trek_tokenizer_encode_to(t->o->tokenizer, text, strlen(text), &(trek_encode_opts){ .plain = true }, row + 1,
                                         window - 2);
        for (; !t->o->tokenizer && text[n] && n < window - 2; n++)
            row[1 + n] = BYTES + (unsigned char)text[n];
        if (n < 0)
            return trek_error_status();
        row[0] = FIRST;
        row[1 + (n < window - 2 ? n : window - 2)] = LAST;
    }
    return out[0] ? TREK_OK : trek_error_status();
}

/* Every tenth row of the table, or all others. */
static trek_dataset *part(trek_dataset *table, texts *t, bool tests)
{
    int64_t n = trek_dataset_length(table), count = 0, *rows = malloc((size_t)(n + 1) * sizeof *rows);
    for (int64_t i = 0; rows && i < n; i++)
        if ((i % 10 == 9) == tests)
            rows[count++] = i;
    trek_dataset *some = rows ? trek_dataset_indices(trek_dataset_retain(table), rows, count) : NULL;
    free(rows);
    const char *const fields[] = { "tokens", "label" };
    return trek_dataset_map(some, tokens_of, &(trek_dataset_map_opts){ .fields = fields, .n_fields = 2, .arg = t });
}

/* --- training ------------------------------------------------------------------------------------------ */

/* Called for each rank. */
static trek_graph *build_model(trek_device device, void *arg)
{
    const options *o = arg;
    return trek_flow_build(trek_flow_from(bert_new(&o->shape, o->model, device)));
}

static trek_var *train_step(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    trek_record_scalar("accuracy", trek_accuracy(logits, trek_batch_get(batch, "label")));
    return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
}

static void train(options *o, trek_dataset *table, texts *t, bool first)
{
    const training *k = &o->common;
    trek_dataset *set = part(table, t, false), *tests = part(table, t, true);
    int64_t steps = k->epochs * ((trek_dataset_length(set) + k->batch_size - 1) / k->batch_size);
    trek_run *run = !set || !tests ? NULL : trek_trainer_run(&(trek_run_opts){
        .build_model       = build_model,
        .train_step        = train_step,
        .arg               = o,
        .dataset           = set,
        .input             = "tokens",
        .optimizer         = trek_adamw(&(trek_adam_opts){ .lr = k->lr, .weight_decay = 0.01 }),
        .schedule          = trek_warmup_lr(steps / 10, trek_linear_lr(k->lr, 1, 0, steps)),
        .batch_size        = k->batch_size,
        .shuffle           = true,
        .epochs            = k->epochs,
        .seed              = k->seed,
        .trainer           = { .ranks = k->ranks, .max_grad_norm = 1 },
        .evaluation        = tests,
        .checkpoint_folder = k->checkpoint,
        .resume_from       = k->checkpoint,
    });
    trek_progress *progress = first && !k->quiet ? trek_progress_new(k->epochs, 0) : NULL;
    for (trek_epoch_metrics m; run && trek_run_next(run, &m); ) {
        double accuracy = trek_metrics_get(&m, "evaluation.accuracy");
        trek_progress_update(progress, m.epoch, m.steps, m.loss);
        trek_progress_epoch(progress, m.epoch, "test accuracy", accuracy);
        if (first && m.epoch + 1 == k->epochs)
            printf("test accuracy %.4f\n", accuracy);
    }
    trek_progress_free(&progress);
    trek_state *trained = run ? trek_run_join(run) : NULL;
    if (trained && first && k->save && !trek_stop_requested())
        trek_state_write(trained, k->save);
    trek_state_free(&trained);
    trek_dataset_free(&set);
    trek_dataset_free(&tests);
}

static void run(options *o, trek_comm *job)
{
    bool first = trek_comm_rank(job) == 0;
    const char *path = o->common.data ? o->common.data : "bert.csv";
    if (!o->common.data && first && !file_is_there(path))
        write_table(path, 1500);
    trek_comm_barrier(job);
    trek_csv_field fields[] = { { .name = "text", .columns = &o->text, .n_columns = 1, .category = true },
                                { .name = "label", .columns = &o->label, .n_columns = 1, .category = true } };
    trek_dataset *table = trek_dataset_csv(path, &(trek_csv_opts){ .fields = fields, .n_fields = 2 });
    int n = 0, classes = 0;
    texts t = { .o = o, .words = table ? trek_csv_words(table, "text", &n) : NULL };
    if (t.words && trek_csv_words(table, "label", &classes)) {
        o->shape.classes = classes;
        train(o, table, &t, first);
    }
    trek_dataset_free(&table);
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 8, .batch_size = 32, .lr = 3e-3, .seed = 1 }, .window = 64, .text = "text",
                  .label = "label",
                  .shape = { .vocabulary = BYTES + 256, .width = 48, .wide = 128, .layers = 2, .heads = 4 } };
    const argument own[] = {
        { "--text", "COLUMN", "name of the column of texts", .text = &o.text },
        { "--label", "COLUMN", "name of the column of classes", .text = &o.label },
        { "--model", "FOLDER", "folder with RoBERTa's weights and tokenizer (default: a small new model)", .text = &o.model },
        { "--window", "N", "number of tokens that are read of each text", .whole = &o.window, .least = 3, .most = 4096 },
    };
    training_read(argc, argv, "Trains an encoder that assigns the texts of a table to classes.", &o.common, own, 4);
    training_stop_by_signals();
    o.shape.positions = o.window + PAD + 1;
    trek_comm *job = trek_comm_init(NULL); /* of the processes of the job; alone a world of one */
    if (job && (!o.model || (bert_config_read(&o.shape, o.model) == TREK_OK && (o.tokenizer = trek_tokenizer_read(o.model))))) {
        if (o.window > o.shape.positions - PAD - 1)
            trek_fail(TREK_ERR_ARGUMENT, "--window is at most %d, the model's positions", (int)o.shape.positions - PAD - 1);
        else
            run(&o, job);
    }
    trek_tokenizer_free(&o.tokenizer);
    trek_comm_free(&job);
    return training_end();
}
