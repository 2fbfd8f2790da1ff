/* SPDX-License-Identifier: Apache-2.0 */
/* Regression on a table, with a dataset of one's own: columns of a CSV file, each brought to mean 0 and deviation 1.
 *
 *   regression [--data FILE] [--target COLUMN] [--epochs N] [--batch-size N] [--lr X] [--checkpoint FOLDER] [--save FILE] ...
 *   trek-run -n 2 ./regression ...     the same on two processes
 *
 * Without --data: 2000 rows of Friedman's first function (1991), whose noise has deviation 1, so that no model comes below an
 * error of 1; a straight line comes to 2.6. */
#include <math.h>
#include <unistd.h>

#include "training.h"

enum { MOST_COLUMNS = 256 };

/* --- the dataset ---------------------------------------------------------------------- */

/* Begins with trek_dataset, as modules begin with trek_module. Its samples: "x" f32 [n, columns], "y" f32 [n, 1]. */
typedef struct table {
    trek_dataset base;
    trek_dataset *rows;            /* the file as it is, in memory: "x" and "y" */
    int columns;
    float mean[MOST_COLUMNS + 1], deviation[MOST_COLUMNS + 1]; /* of the features, and last of the target */
} table;

static int64_t table_length(const trek_dataset *self)
{
    return trek_dataset_length(((const table *)self)->rows);
}

/* A CSV field of one column is [n]. Left so, a loss would broadcast it against the model's [n, 1]. */
static trek_status as_matrix(trek_tensor **field, int64_t n)
{
    trek_tensor *given = *field;
    *field = trek_tensor_view(given, trek_dims(n, -1));
    trek_tensor_release(given);
    return *field ? TREK_OK : trek_error_status();
}

/* Called from loaders' threads, several at once: it only reads the struct. */
static trek_status table_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    table *t = (table *)self;
    trek_status status = trek_dataset_fetch(t->rows, fetch, out); /* new tensors, which nobody else has */
    if (status != TREK_OK)
        return status;
    float *x = trek_tensor_data(out[0]), *y = trek_tensor_data(out[1]);
    for (int64_t i = 0; i < fetch->n; i++) {
        for (int c = 0; c < t->columns; c++)
            x[i * t->columns + c] = (x[i * t->columns + c] - t->mean[c]) / t->deviation[c];
        y[i] = (y[i] - t->mean[t->columns]) / t->deviation[t->columns];
    }
    return as_matrix(&out[0], fetch->n) == TREK_OK ? as_matrix(&out[1], fetch->n) : trek_error_status();
}

static void table_free(trek_dataset *self)
{
    trek_dataset_free(&((table *)self)->rows);
}

static const char *const table_fields[] = { "x", "y" };
static const trek_dataset_class table_class = { .name = "table", .size = sizeof(table), .length = table_length, .get = table_get,
                                                .free = table_free, .n_fields = 2, .fields = table_fields };

/* Mean and deviation of each column over the first n rows, those that train. */
static trek_status table_measure(table *t, int64_t n)
{
    double sum[MOST_COLUMNS + 1] = { 0 }, squares[MOST_COLUMNS + 1] = { 0 };
    for (int64_t i = 0; i < n; i++) {
        trek_tensor *row[2];
        if (trek_dataset_get(t->rows, &i, 1, row) != TREK_OK)
            return trek_error_status();
        const float *x = trek_tensor_data(row[0]), *y = trek_tensor_data(row[1]);
        for (int c = 0; c <= t->columns; c++) {
            double value = c < t->columns ? x[c] : y[0];
            sum[c] += value;
            squares[c] += value * value;
        }
        trek_tensor_release(row[0]);
        trek_tensor_release(row[1]);
    }
    for (int c = 0; c <= t->columns; c++) {
        double mean = sum[c] / (double)n, variance = squares[c] / (double)n - mean * mean;
        if (!isfinite(variance))
            return trek_fail(TREK_ERR_FORMAT, "column %d lacks a value in some row", c);
        t->mean[c] = (float)mean;
        t->deviation[c] = variance > 1e-12 ? (float)sqrt(variance) : 1;
    }
    return TREK_OK;
}

/* Every column but the target is a feature, and all are numbers. NULL and an error. */
static trek_dataset *table_new(const char *path, const char *target, int64_t *n_train)
{
    const char *names[MOST_COLUMNS];
    trek_dataset *dataset = trek_dataset_new(&table_class), *columns = trek_dataset_csv(path, NULL); /* a field for each */
    table *t = (table *)dataset;
    if (t && columns && trek_dataset_field(columns, target) >= 0) {
        for (int k = 0; k < trek_dataset_field_count(columns) && t->columns < MOST_COLUMNS; k++)
            if (strcmp(trek_dataset_field_name(columns, k), target) != 0)
                names[t->columns++] = trek_dataset_field_name(columns, k);
        trek_csv_field fields[] = { { .name = "x", .columns = names, .n_columns = t->columns },
                                    { .name = "y", .columns = &target, .n_columns = 1 } };
        t->rows = trek_dataset_csv(path, &(trek_csv_opts){ .fields = fields, .n_fields = 2 });
        *n_train = trek_dataset_length(columns) * 4 / 5;
        if (t->rows && (t->columns == 0 || *n_train == 0))
            trek_fail(TREK_ERR_FORMAT, "%s: there must be a column in addition to %s, and five rows", path, target);
        else if (t->rows)
            table_measure(t, *n_train);
    }
    trek_dataset_free(&columns);
    if (trek_error_status() != TREK_OK)
        trek_dataset_free(&dataset);
    return dataset;
}

/* --- the file that is made ------------------------------------------------------------ */

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) * 0x1p-24;
}

static bool write_friedman(const char *path)
{
    FILE *file = fopen(path, "w");
    uint64_t state = 1;
    if (file)
        fprintf(file, "x1,x2,x3,x4,x5,x6,x7,y\n");
    for (int i = 0; i < 2000 && file; i++) {
        double x[7], noise = -6;
        for (int k = 0; k < 7; k++)
            fprintf(file, "%.6f,", x[k] = uniform(&state));
        for (int k = 0; k < 12; k++)
            noise += uniform(&state); /* nearly normal */
        fprintf(file, "%.6f\n",
                10 * sin(acos(-1.0) * x[0] * x[1]) + 20 * (x[2] - 0.5) * (x[2] - 0.5) + 10 * x[3] + 5 * x[4] + noise);
    }
    return file && fclose(file) == 0;
}

/* --- training --------------------------------------------------------------------------- */

typedef struct watch {
    trek_progress *progress;
    double scale;              /* of the target */
    double error;              /* root of the mean square, in the target's units, of the last epoch */
} watch;

static trek_var *square_error(trek_graph *graph, trek_var *y, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_mse_loss(y, trek_batch_get(batch, "y"));
}

static trek_status on_metrics(const trek_epoch_metrics *m, void *arg)
{
    watch *w = arg;
    w->error = sqrt(m->evaluation_loss) * w->scale;
    trek_progress_update(w->progress, m->epoch, 1, m->loss);
    trek_progress_epoch(w->progress, m->epoch, "test error", w->error);
    return TREK_OK;
}

static void train(const training *t, trek_dataset *data, int64_t n_train, bool first)
{
    const table *columns = (const table *)data;
    trek_dataset *train = trek_dataset_subset(trek_dataset_retain(data), 0, n_train);
    trek_dataset *test = trek_dataset_subset(trek_dataset_retain(data), n_train, trek_dataset_length(data) - n_train);
    trek_device device = trek_device_default();
    trek_module *model = trek_nn_sequential((trek_module *[]){
        trek_nn_linear(columns->columns, 64, device), trek_nn_silu(), trek_nn_linear(64, 64, device), trek_nn_silu(),
        trek_nn_linear(64, 1, device) }, 5);
    watch w = { .scale = columns->deviation[columns->columns], .error = NAN };
    w.progress = first && !t->quiet ? trek_progress_new(t->epochs, 1) : NULL;
    trek_fit(model, &(trek_run_opts){
        .dataset = train, .evaluation = test, .input = "x", .train_step = square_error, .arg = &w,
        .batch_size = t->batch_size, .shuffle = true, .epochs = t->epochs, .seed = t->seed,
        .optimizer = trek_adamw(&(trek_adam_opts){ .lr = t->lr }),
        .on_metrics = on_metrics,
        .checkpoint_folder = t->checkpoint, .resume_from = t->checkpoint });
    trek_progress_free(&w.progress);
    if (trek_error_status() == TREK_OK && first && t->save)
        trek_state_save(model, t->save);
    if (trek_error_status() == TREK_OK && first && isfinite(w.error))
        printf("test error %.3f, of targets with deviation %.3f\n", w.error, w.scale);
    trek_module_free(&model);
    trek_dataset_free(&train);
    trek_dataset_free(&test);
}

int main(int argc, char **argv)
{
    training t = { .epochs = 60, .batch_size = 64, .lr = 3e-3, .seed = 1, .without = "--ranks" };
    const char *target = "y";
    const argument own[] = { { "--target", "COLUMN", "what is learnt; all others are what it is learnt from", .text = &target } };
    training_read(argc, argv, "Regression on the columns of a CSV file.", &t, own, 1);
    training_stop_by_signals();
    trek_seed(t.seed);
    trek_comm *job = trek_comm_init(NULL); /* the processes, where there are several; else a world of one */
    char made[64] = "";
    if (!t.data) {
        snprintf(made, sizeof made, "friedman-%ld.csv", (long)getpid());
        if (!write_friedman(t.data = made))
            trek_fail(TREK_ERR_IO, "%s cannot be written", made);
    }
    int64_t n_train = 0;
    trek_dataset *data = table_new(t.data, target, &n_train);
    if (made[0])
        remove(made); /* the rows are in memory */
    if (data)
        train(&t, data, n_train, trek_comm_rank(job) == 0);
    trek_dataset_free(&data);
    trek_comm_free(&job);
    return training_end();
}
