/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by what nvcc made of them (tests/ptx) in place of the same source as C++:
 *   TREK_TEST_PTX        folder with the files' PTX, by the names of the C++ files
 *   TREK_TEST_PTX_ORDER  forward, backward, random or random:SEED
 *   TREK_TEST_PTX_COPY   late or early: when cp.async writes
 *   TREK_TEST_PTX_COUNTS file that at exit gets a line for each kernel: what it did (tests/ptx/report.py)
 * A kernel's name in PTX is its symbol, which nvcc and the C++ compiler make alike. */
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "fake_control.h"
#include "fake_kernel.h"
#include "ptx/ptx.h"

namespace fake {

static const char *folder() { static const char *const f = getenv("TREK_TEST_PTX"); return f && *f ? f : nullptr; }
bool runs_ptx() { return folder() != nullptr; }

/* --- names of functions --- */

struct Symbols { /* of a library: where its functions begin, their names, and for local ones the file they are of */
    struct Symbol {
        std::string name, file;
    };
    std::map<uintptr_t, Symbol> functions; /* by their place in the library */
    explicit Symbols(const std::string &path);
};

static std::string contents(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

Symbols::Symbols(const std::string &path)
{
    std::string data = contents(path);
    if (data.size() < sizeof(Elf64_Ehdr) || memcmp(data.data(), ELFMAG, SELFMAG))
        return;
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)data.data();
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(data.data() + head->e_shoff);
    for (unsigned s = 0; s < head->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(data.data() + sections[s].sh_offset);
        const char *names = data.data() + sections[sections[s].sh_link].sh_offset;
        std::string file;
        for (size_t k = 0; k < sections[s].sh_size / sizeof *symbols; k++) {
            unsigned type = ELF64_ST_TYPE(symbols[k].st_info);
            bool local = ELF64_ST_BIND(symbols[k].st_info) == STB_LOCAL;
            if (type == STT_FILE)
                file = names + symbols[k].st_name;
            else if (type == STT_FUNC && symbols[k].st_value)
                functions[symbols[k].st_value] = { names + symbols[k].st_name, local ? file : "" };
        }
    }
}

/* The two compilers name what is local to a file differently: nameless namespaces, and functions that are static. */
static std::string common_name(std::string name)
{
    if (name.compare(0, 3, "_ZL") == 0)
        name.erase(2, 1);
    for (size_t at = 0; (at = name.find("_GLOBAL__N_", at)) != std::string::npos;) {
        size_t number = at;
        while (number > 0 && isdigit((unsigned char)name[number - 1]))
            number--;
        std::string one = "12_GLOBAL__N_1";
        name.replace(number, at - number + (size_t)atoi(name.c_str() + number), one);
        at = number + one.size();
    }
    return name;
}

static const Symbols::Symbol *symbol_of(const void *function)
{
    static std::map<std::string, std::unique_ptr<Symbols>> known;
    Dl_info info;
    if (!dladdr(function, &info) || !info.dli_fname)
        return nullptr;
    std::unique_ptr<Symbols> &of = known[info.dli_fname];
    if (!of)
        of = std::make_unique<Symbols>(info.dli_fname);
    auto found = of->functions.find((uintptr_t)function - (uintptr_t)info.dli_fbase);
    return found == of->functions.end() ? nullptr : &found->second;
}

/* --- modules and kernels --- */

/* A file of the folder: its kernels' names are known at once, the rest when one of them runs. */
struct File {
    std::string name;
    const char *text = nullptr;
    size_t bytes = 0;
    std::unique_ptr<ptx::Module> module;
    explicit File(const std::string &path);
    std::vector<std::string> entries() const;
    ptx::Module &read()
    {
        if (!module)
            module = std::make_unique<ptx::Module>(name, std::string(text, bytes));
        return *module;
    }
};

File::File(const std::string &path) : name(path.substr(path.rfind('/') + 1))
{
    int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (descriptor >= 0 && fstat(descriptor, &about) == 0 && about.st_size > 0) {
        void *at = mmap(nullptr, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (at != MAP_FAILED) {
            text = (const char *)at;
            bytes = (size_t)about.st_size;
        }
    }
    if (descriptor >= 0)
        close(descriptor);
}

std::vector<std::string> File::entries() const
{
    static const char word[] = ".entry ";
    std::vector<std::string> names;
    const char *end = text + bytes, *at = text;
    while (at && (at = (const char *)memmem(at, (size_t)(end - at), word, sizeof word - 1))) {
        at += sizeof word - 1;
        const char *stop = (const char *)memchr(at, '(', (size_t)(end - at));
        names.emplace_back(at, stop ? stop : end);
    }
    return names;
}

struct Kernels {
    std::mutex mutex; /* of all that follows */
    std::vector<std::unique_ptr<File>> files;
    struct Place {
        File *file;
        std::string entry;
    };
    std::unordered_map<std::string, std::vector<Place>> by_name; /* by what is common to both compilers */
    std::unordered_map<const void *, const ptx::Program *> programs;
    std::unordered_map<const void *, std::string> names;
    std::map<std::string, ptx::Counts> counts;
    ptx::Options options;
    const char *counts_file = nullptr;
    unsigned long launches = 0;
    Kernels();
    const ptx::Program &program(const void *function);
    void write_counts();
};

static Kernels &kernels()
{
    static Kernels *k = new Kernels;
    return *k;
}

static void count_at_exit() { kernels().write_counts(); }

Kernels::Kernels()
{
    std::vector<std::string> found;
    if (DIR *d = opendir(folder())) {
        while (struct dirent *e = readdir(d))
            if (std::string(e->d_name).find(".ptx") != std::string::npos)
                found.push_back(e->d_name);
        closedir(d);
    }
    std::sort(found.begin(), found.end());
    for (const std::string &f : found) {
        files.push_back(std::make_unique<File>(std::string(folder()) + "/" + f));
        for (const std::string &name : files.back()->entries())
            by_name[common_name(name)].push_back({ files.back().get(), name });
    }
    const char *order = getenv("TREK_TEST_PTX_ORDER"), *copy = getenv("TREK_TEST_PTX_COPY");
    std::string o = order ? order : "forward";
    options.order = o == "backward" ? ptx::Order::backward : o.compare(0, 6, "random") == 0 ? ptx::Order::random
        : ptx::Order::forward;
    if (o.compare(0, 7, "random:") == 0)
        options.seed = strtoull(o.c_str() + 7, nullptr, 10);
    options.copy_late = !copy || std::string(copy) != "early";
    counts_file = getenv("TREK_TEST_PTX_COUNTS");
    options.measure = counts_file != nullptr;
    if (counts_file)
        atexit(count_at_exit);
}

const ptx::Program &Kernels::program(const void *function)
{
    const ptx::Program *&known = programs[function];
    if (known)
        return *known;
    const Symbols::Symbol *symbol = symbol_of(function);
    if (!symbol)
        throw ptx::Fault("a kernel without a symbol");
    auto found = by_name.find(common_name(symbol->name));
    if (found == by_name.end())
        throw ptx::Fault("no PTX has the kernel " + symbol->name);
    const Place *place = &found->second[0];
    for (const Place &p : found->second) /* local ones of one name in several files */
        if (!symbol->file.empty() &&
            p.file->name.substr(0, p.file->name.rfind('.')) == symbol->file.substr(0, symbol->file.rfind('.')))
            place = &p;
    names[function] = place->entry;
    known = &place->file->read().program(place->entry);
    return *known;
}

void Kernels::write_counts()
{
    std::lock_guard<std::mutex> lock(mutex);
    FILE *file = fopen(counts_file, "a");
    if (!file)
        return;
    for (auto &k : counts) {
        const ptx::Counts &c = k.second;
        fprintf(file, "%s\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\t%lu\n", k.first.c_str(),
                (unsigned long)c.launches,
                (unsigned long)c.blocks, (unsigned long)c.instructions, (unsigned long)c.lanes, (unsigned long)c.flops,
                (unsigned long)c.tensor_flops, (unsigned long)c.loaded, (unsigned long)c.stored, (unsigned long)c.sectors,
                (unsigned long)c.least_sectors, (unsigned long)c.shared, (unsigned long)c.conflicts, (unsigned long)c.barriers,
                (unsigned long)c.atomics, (unsigned long)c.threads, (unsigned long)c.block_shared);
    }
    fclose(file);
}

/* --- launches --- */

struct DeviceMemory : ptx::Memory {
    unsigned devices;
    explicit DeviceMemory(unsigned d) : devices(d) {}
    ptx::Range find(uintptr_t address) const override
    {
        Block block;
        if (!find_block((const void *)address, &block) || (block.device >= 0 && !(devices >> block.device & 1u)))
            return { 0, 0 };
        return { (uintptr_t)block.base, (uintptr_t)block.base + block.bytes };
    }
};

void run_ptx(const Kernel &kernel)
{
    Kernels &all = kernels();
    try {
        const ptx::Program *program;
        ptx::Options options = all.options;
        std::string name;
        {
            std::lock_guard<std::mutex> lock(all.mutex);
            program = &all.program(kernel.function);
            options.seed += all.launches++;
            name = all.names[kernel.function];
        }
        ptx::Launch launch = { { kernel.grid.x, kernel.grid.y, kernel.grid.z },
                               { kernel.block.x, kernel.block.y, kernel.block.z },
                               kernel.shared_bytes, kernel.arguments.data(), kernel.arguments.size(), state().shared };
        ptx::Counts counts;
        ptx::run(*program, launch, DeviceMemory(reach(kernel.device)), options, &counts);
        if (options.measure) {
            std::lock_guard<std::mutex> lock(all.mutex);
            all.counts[name].add(counts);
        }
    } catch (const ptx::Fault &fault) {
        report("%s (op %s)", fault.what(), kernel.name);
        set_sticky(kernel.device, cudaErrorLaunchFailure);
    }
}

} // namespace fake

void trek_fake_forget_counts(void)
{
    if (!fake::runs_ptx())
        return;
    std::lock_guard<std::mutex> lock(fake::kernels().mutex);
    fake::kernels().counts.clear();
}
