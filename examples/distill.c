/* SPDX-License-Identifier: Apache-2.0 */
/* Knowledge distillation (Hinton, Vinyals and Dean, 2015): a small model learns what a large one, which is frozen, makes of
 * digits, on one rank or several.
 *
 *   distill [--teacher FILE] [--labels X] [--temperature X] [--epochs N] [--ranks N] ...
 *   trek-run -n 2 ./distill ...        the same on two processes
 *
 * FILE holds the teacher; where there is none it is trained first and written there. */
#include <math.h>

#include "digits.h"
#include "training.h"

typedef struct options {
    training common;
    const char *teacher;
    int teacher_epochs;
    double labels, temperature;
} options;

/* --- the two models --------------------------------------------------------------------- */

/* Called once for each rank: trek_graph_set_teacher brings the values. */
static trek_module *build_teacher(trek_device device, void *arg)
{
    (void)arg;
    return trek_nn_sequential((trek_module *[]){
        trek_nn_conv2d(1, 16, 5, device), trek_nn_relu(), trek_nn_max_pool2d(2),
        trek_nn_conv2d(16, 32, 5, device), trek_nn_relu(), trek_nn_max_pool2d(2), trek_nn_flatten(),
        trek_nn_linear(512, 128, device), trek_nn_relu(), trek_nn_linear(128, 10, device) }, 10);
}

static trek_graph *build_teacher_graph(trek_device device, void *arg)
{
    return trek_flow_build(trek_flow_from(build_teacher(device, arg)));
}

static trek_graph *build_student(trek_device device, void *arg)
{
    (void)arg;
    trek_flow *flow = trek_flow_from(trek_nn_avg_pool2d(2));     /* [n, 1, 28, 28] -> [n, 1, 14, 14] */
    trek_flow_through(flow, trek_nn_flatten());
    trek_flow_through(flow, trek_nn_linear(196, 32, device));
    trek_flow_through(flow, trek_nn_relu());
    trek_flow_through(flow, trek_nn_linear(32, 10, device));
    return trek_flow_build(flow);
}

/* --- their losses ------------------------------------------------------------------------- */

static trek_var *label_loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    (void)graph, (void)arg;
    return trek_cross_entropy(logits, trek_batch_get(batch, "label"));
}

/* labels x cross entropy + (1 - labels) T^2 x divergence from the teacher, both at temperature T. The teacher is the rank's own
 * copy and is frozen: nothing is recorded below it. */
static trek_var *student_loss(trek_graph *graph, trek_var *logits, const trek_batch *batch, void *arg)
{
    const options *o = arg;
    double t = o->temperature;
    trek_var *teachers = trek_forward(trek_graph_teacher(graph, "teacher"), trek_batch_get(batch, "image"));
    trek_var *soft = trek_kl_div(trek_log_softmax(trek_div_scalar(logits, t), 1), trek_softmax(trek_div_scalar(teachers, t), 1));
    trek_var *hard = label_loss(graph, logits, batch, NULL);
    return trek_add(trek_mul_scalar(hard, o->labels), trek_mul_scalar(soft, (1 - o->labels) * t * t));
}

/* --- training ----------------------------------------------------------------------------- */

typedef struct task {
    const options *o;
    trek_loader *train, *test;
    bool first;                /* this process is the one that tells */
} task;

/* Share of the test set that the model gets right. */
static double accuracy_of(trek_graph *model, trek_loader *test)
{
    double right = 0;
    trek_graph_train(model, false);
    trek_no_grad_begin();
    trek_loader_start(test, 0);
    for (trek_batch *batch; (batch = trek_loader_next(test)); ) {
        trek_var *logits = trek_graph_forward(model, trek_batch_get(batch, "image"));
        right += trek_var_item(trek_accuracy(logits, trek_batch_get(batch, "label"))) * (double)trek_batch_size(batch);
    }
    trek_no_grad_end();
    trek_graph_train(model, true);
    return right / (double)trek_loader_samples(test);
}

/* The loop of both. checkpoint NULL: the run is kept nowhere. */
static double fit(const task *k, trek_graph *model, int epochs, const char *checkpoint)
{
    training kept = k->o->common;
    kept.checkpoint = checkpoint;
    bool resumed;
    double accuracy = NAN;
    trek_graph_set_loader(model, k->train, "image");
    trek_progress *progress = k->first && !k->o->common.quiet ? trek_progress_new(epochs, trek_loader_batches(k->train)) : NULL;
    for (int64_t epoch = training_resume(&kept, model, k->train, &resumed); epoch < epochs; epoch++, resumed = false) {
        int64_t done = 0;
        if (resumed)
            trek_loader_position(k->train, NULL, &done);
        else
            trek_graph_start(model, epoch);
        for (trek_batch *batch; !trek_stop_requested() && (batch = trek_graph_next(model)); trek_graph_step(model)) {
            trek_var *mean = trek_graph_train_batch(model, batch);
            trek_progress_update(progress, epoch, ++done, mean ? trek_var_item(mean) : NAN);
        }
        if (checkpoint)
            trek_checkpoint_save(model, k->train, checkpoint);
        if (trek_stop_requested() || trek_error_status() != TREK_OK)
            break;
        accuracy = accuracy_of(model, k->test);
        trek_progress_epoch(progress, epoch, "test accuracy", accuracy);
    }
    trek_progress_free(&progress);
    return accuracy;
}

static trek_trainer_opts trainer(const options *o, trek_build_fn build)
{
    return (trek_trainer_opts){ .build_replica = build, .ranks = o->common.ranks,
                                .optimizer = trek_adam(&(trek_adam_opts){ .lr = o->common.lr }) };
}

/* The teacher in its file, which is made where it is not there. */
static void find_teacher(const task *k)
{
    if (file_is_there(k->o->teacher))
        return;
    trek_graph *teacher = build_teacher_graph(trek_device_default(), NULL);
    trek_trainer_opts opts = trainer(k->o, build_teacher_graph);
    trek_trainer_setup(teacher, &opts);
    trek_graph_set_loss(teacher, label_loss, NULL);
    double accuracy = fit(k, teacher, k->o->teacher_epochs, NULL);
    if (k->first && !trek_stop_requested() && trek_error_status() == TREK_OK &&
        trek_state_save(trek_graph_at(teacher, "0"), k->o->teacher) == TREK_OK)
        printf("the teacher, of %d numbers: test accuracy %.4f\n", (int)trek_module_param_count(trek_graph_module(teacher)),
               accuracy);
    trek_graph_free(&teacher);
}

static void learn_from_it(const task *k)
{
    trek_module *teacher = build_teacher(trek_device_default(), NULL);
    trek_state_load(teacher, k->o->teacher, NULL);
    trek_graph *student = build_student(trek_device_default(), NULL);
    trek_graph_set_teacher(student, "teacher", teacher, build_teacher, NULL); /* freezes it; it is the graph's from here */
    trek_trainer_opts opts = trainer(k->o, build_student);
    trek_trainer_setup(student, &opts);
    trek_graph_set_loss(student, student_loss, (void *)k->o);
    double accuracy = fit(k, student, k->o->common.epochs, k->o->common.checkpoint);
    if (k->first && trek_error_status() == TREK_OK && isfinite(accuracy)) {
        if (k->o->common.save)
            trek_state_save(trek_graph_module(student), k->o->common.save);
        printf("the student, of %d numbers: test accuracy %.4f\n", (int)trek_module_param_count(trek_graph_module(student)),
               accuracy);
    }
    trek_graph_free(&student);
}

int main(int argc, char **argv)
{
    options o = { .common = { .epochs = 40, .batch_size = 64, .lr = 5e-3, .seed = 1 }, .teacher = "teacher.safetensors",
                  .teacher_epochs = 5, .labels = 0.1, .temperature = 4 };
    const argument own[] = {
        { "--teacher", "FILE", "its state; trained first and written there if there is none", .text = &o.teacher },
        { "--teacher-epochs", "N", "how long it is trained then", .whole = &o.teacher_epochs, .least = 1 },
        { "--labels", "X", "weight of the labels next to the teacher: 0 none, 1 they alone", .number = &o.labels, .least = 0,
          .most = 1 },
        { "--temperature", "X", "softens what both say", .number = &o.temperature, .least = 1e-3, .most = 1e3 },
    };
    training_read(argc, argv, "A small model learns digits from a large one, which is frozen.", &o.common, own, 4);
    if (!argument_can_be_written(o.teacher))
        return 1;
    training_stop_by_signals();
    trek_seed(o.common.seed);
    trek_comm *job = trek_comm_init(NULL); /* the processes, where there are several; else a world of one */
    digits data = digits_open(o.common.data, 4000, 1000);
    task k = { .o = &o, .first = trek_comm_rank(job) == 0 };
    k.train = trek_loader_new(data.train, &(trek_loader_opts){ .batch_size = o.common.batch_size, .shuffle = true,
                                                               .seed = o.common.seed });
    k.test = trek_loader_new(data.test, &(trek_loader_opts){ .batch_size = 500, .whole = true });
    find_teacher(&k);
    trek_comm_barrier(job); /* its file is there for all */
    if (!trek_stop_requested()) {
        trek_seed(o.common.seed); /* the student is the same whether the teacher had to be trained or not */
        learn_from_it(&k);
    }
    trek_loader_free(&k.test);
    trek_loader_free(&k.train);
    trek_comm_free(&job);
    return training_end();
}
