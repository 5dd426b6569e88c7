#include "cli/arguments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/command_line.h"
#include "base/human_units.h"
#include "base/status.h"
#include "cli/clone_arguments.h"
#include "cli/command_group.h"
#include "cli/function_arguments.h"
#include "cli/gpu_arguments.h"
#include "cli/group_arguments.h"
#include "cli/hints.h"
#include "cli/json.h"
#include "cli/leading_words.h"
#include "cli/named_values.h"
#include "cli/number_checks.h"
#include "cli/paths.h"
#include "cli/rollback_arguments.h"
#include "cli/store_arguments.h"
#include "cli/supervision_arguments.h"
#include "cli/template_arguments.h"
#include "cli/transfer_arguments.h"
#include "daemon/version.h"

namespace rekindle::cli {
namespace {

constexpr char kExitCodes[] =
    "Exit status: 0 done, 1 failed, 2 bad usage, 3 not found, 4 not permitted, 5 unsupported on this "
    "machine, 6 no store; of wait also 124: time-out.";

bool IsIn(absl::string_view word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The whole command line, as CLI11 fills it in.
class Parser {
 public:
  // `command`: the word where the command's name belongs. To take in what all commands may have takes as long
  // as many a command's work: where it is a command's name, only that one is.
  Parser(const std::string& working_directory, absl::string_view command)
      : working_directory_(working_directory) {
    app_.name("rekindle");
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.set_help_flag("-h,--help", "Show this help");
    app_.set_version_flag("--version", daemon::kVersion, "Show the version of this program");
    app_.footer(
        absl::StrCat("Examples:\n"
                     "  rekindle doctor\n"
                     "  rekindle run --name train --detach -- python3 train.py\n"
                     "  rekindle ckpt train -t train:epoch1\n"
                     "  rekindle restore train:epoch1\n"
                     "'rekindle COMMAND --help' has more.\n",
                     kExitCodes));
    AddGlobals();
    AddCommands(command);
  }

  // `ours`: up to the words of `job`.
  ParsedArguments Parse(std::vector<std::string> ours, const std::vector<std::string>& job,
                        const std::vector<std::string>& environment) {
    ParsedArguments parsed;
    const std::vector<std::string> words = ours;
    std::reverse(ours.begin(), ours.end());  // as CLI11 wants it
    try {
      app_.parse(ours);
    } catch (const CLI::CallForHelp&) {
      // "help nosuch": whose help that would be.
      const std::string wrong =
          app_.get_subcommands().empty() ? WrongWord(app_, Parser(working_directory_, "").app_, words) : "";
      if (wrong.empty()) {
        parsed.help = Help();
        return parsed;
      }
      parsed.status = Usage(wrong);
    } catch (const CLI::CallForVersion&) {
      v1::GetVersionResponse version;
      version.set_version(daemon::kVersion);
      parsed.help = absl::StrCat(
          IsIn("--json", words) ? ToJson(version) : absl::StrCat("rekindle ", daemon::kVersion), "\n");
      return parsed;
    } catch (const CLI::ParseError& error) {
      const std::string wrong = WrongWord(app_, Parser(working_directory_, "").app_, words);
      parsed.status = Usage(wrong.empty() ? WhatIsWrong(error) : wrong);
    }
    if (parsed.status.ok()) parsed.status = CheckForEmptyValues(app_);
    // Known even if the rest is wrong: how the error is to be printed. CLI11 may have stopped before it.
    if (!parsed.status.ok() && IsIn("--json", words)) globals_.json = true;
    if (!store_.empty()) globals_.store = Absolute(store_, working_directory_);
    if (!host_.empty()) globals_.host = host_;
    parsed.invocation.globals = globals_;
    if (!parsed.status.ok()) return parsed;
    absl::Status finished = Finish(job, environment);
    if (!finished.ok()) {
      parsed.status = Usage(finished.message());
      return parsed;
    }
    parsed.invocation.command = std::move(command_);
    parsed.invocation.run = run_options_;
    parsed.invocation.timeline = timeline_;
    parsed.invocation.of_functions = of_functions_;
    parsed.invocation.timeline.trace_file = Absolute(timeline_.trace_file, working_directory_);
    return parsed;
  }

 private:
  // Of the command that was named, or of the whole.
  std::string Help() const {
    for (const CLI::App* command : app_.get_subcommands()) {
      for (const CLI::App* below : command->get_subcommands()) {
        return below->help(absl::StrCat("rekindle ", command->get_name()));
      }
      return command->help("rekindle");
    }
    return app_.help();
  }

  // Of the command that was named, or of the whole.
  const CLI::App& Named() const {
    const CLI::App* named = &app_;
    while (!named->get_subcommands().empty()) named = named->get_subcommands().front();
    return *named;
  }

  // `name`: of an argument of the command, as CLI11 has it. Empty: it is none.
  std::string WhatIsMissing(const std::string& name) const {
    const CLI::Option* argument = Named().get_option_no_throw(name);
    if (argument == nullptr) return "";
    const std::string text = absl::StrCat(argument->get_positional() ? argument->get_type_name() : name,
                                          " is missing: ", argument->get_description());
    constexpr char kExample[] = "\n  rekindle ";
    const std::string footer = Named().get_footer();
    const size_t example = footer.find(kExample);
    if (example == std::string::npos) return text;
    const size_t begin = example + 3;
    return absl::StrCat(text, ", as in '", footer.substr(begin, footer.find('\n', begin) - begin), "'");
  }

  std::string WhatIsWrong(const CLI::ParseError& error) const {
    absl::string_view rest = error.what();
    if (absl::ConsumeSuffix(&rest, " is required")) {
      const std::string missing = WhatIsMissing(std::string(rest));
      return missing.empty() ? error.what() : missing;
    }
    // "Could not convert: --keep = x"
    if (!absl::ConsumePrefix(&rest, "Could not convert: ")) return error.what();
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(rest, absl::MaxSplits(" = ", 1));
    return absl::StrCat(sides.first, ": '", sides.second, "' is no whole number from 0 on, or is too large");
  }

  // Taken for an option that was not given, it would let a command work on another store, daemon or file.
  absl::Status CheckForEmptyValues(const CLI::App& command) const {
    for (const CLI::Option* option : command.get_options()) {
      const std::string name = option->get_name();
      if (MayBeEmpty(name)) continue;
      for (const std::string& value : option->results()) {
        if (value.empty()) return Usage(absl::StrCat(name, ": the value is empty; is a variable not set?"));
      }
    }
    for (const CLI::App* below : command.get_subcommands()) RK_RETURN_IF_ERROR(CheckForEmptyValues(*below));
    return absl::OkStatus();
  }
  static bool MayBeEmpty(absl::string_view option) {
    return option == "--payload" || option == "--description";
  }

  absl::Status Usage(absl::string_view message) const {
    std::string command;
    for (const CLI::App* app = &app_; !app->get_subcommands().empty();) {
      app = app->get_subcommands().front();
      absl::StrAppend(&command, " ", app->get_name());
    }
    return absl::InvalidArgumentError(absl::StrCat(message, " (see 'rekindle", command, " --help')"));
  }

  void AddGlobals() {
    app_.add_option("--store", store_,
                    "The store's folder, for work without a daemon [$REKINDLE_STORE, /var/lib/rekindle]")
        ->type_name("DIR");
    app_.add_option(
            "--host", host_,
            "The daemon: unix:///PATH or NAME:PORT [$REKINDLE_HOST, unix:///run/rekindle/rekindled.sock]")
        ->type_name("ADDRESS");
    app_.add_option("--tls-ca", globals_.tls_ca, "For NAME:PORT: certificates that vouch for the daemon")
        ->type_name("FILE");
    app_.add_option("--tls-cert", globals_.tls_certificate, "For NAME:PORT: our certificate")
        ->type_name("FILE");
    app_.add_option("--tls-key", globals_.tls_key, "For NAME:PORT: its key")->type_name("FILE");
    app_.add_flag("--no-daemon", globals_.no_daemon, "Do the work in this process, also where a daemon runs");
    app_.add_flag("--json", globals_.json, "Print JSON, for scripts; no progress bar");
    app_.add_flag("-v,--verbose", globals_.verbose,
                  "Show every CRIU command line that is run, and debug messages");
  }

  CLI::App* AddCommand(const std::string& name, const std::string& description, const std::string& examples) {
    return cli::AddCommand(app_, name, description, examples);
  }

  void AddCommands(absl::string_view command);
  void AddRun();
  void AddStop();
  void AddAttach();
  void AddWait();
  void AddLogs();
  void AddCkpt();
  void AddRestore();
  void AddPs();
  void AddLs();
  void AddInspect();
  void AddDiff();
  void AddRm();
  void AddTag();
  void AddWorkingSet();
  void AddPrune();
  void AddExport();
  void AddImport();
  void AddCopy();
  void AddGc();
  void AddFsck();
  void AddQuota();
  void AddStats() {
    AddCommand("stats", "Show what the store holds, on disk and in memory", "  rekindle stats --json\n");
  }
  void AddDoctor() {
    AddCommand("doctor", "Check everything that Rekindle needs on this machine", "  rekindle doctor\n");
  }
  void AddVersion() {
    AddCommand("version", "Show versions; with -v also CRIU's", "  rekindle version -v\n");
  }
  void AddGpu() { gpu_.AddTo(app_); }
  void AddTemplate() { template_.AddTo(app_, &timeline_); }
  void AddGroup() { group_.AddTo(app_); }
  void AddFn() { function_.AddFnTo(app_); }
  void AddDeps() { function_.AddDepsTo(app_); }
  void AddSim() { sim_.AddTo(app_); }
  void AddTop() { top_.AddTo(app_); }
  absl::Status Finish(const std::vector<std::string>& job, const std::vector<std::string>& environment);

  const std::string working_directory_;
  GpuArguments gpu_;
  SimArguments sim_;
  TopArguments top_;
  TemplateArguments template_;
  GroupArguments group_;
  FunctionArguments function_;
  bool of_functions_ = false;
  CLI::App app_{"Freezes running jobs into a deduplicated image store and brings them back."};
  GlobalOptions globals_;
  std::string store_, host_;
  Command command_;
  TimelineOptions timeline_;

  v1::RunRequest run_;
  SupervisionArguments supervision_;
  RunOptions run_options_;
  std::string run_log_;
  std::vector<std::string> run_words_;
  v1::CheckpointRequest ckpt_;
  std::string ckpt_target_, ckpt_memory_, restore_gpu_map_;
  std::vector<std::string> ckpt_labels_;
  v1::RestoreRequest restore_;
  RollbackArguments ckpt_files_, restore_files_;
  CloneArguments clone_;
  v1::RemoveImagesRequest remove_;
  v1::TagImageRequest tag_;
  std::vector<std::string> tag_labels_;
  v1::DropWorkingSetRequest drop_;
  std::vector<std::string> remove_images_;
  std::string remove_from_;
  v1::DoctorRequest doctor_;
  v1::GetVersionRequest version_;
  v1::ListJobsRequest ps_;
  v1::InspectImageRequest inspect_;
  v1::DiffImagesRequest diff_;
  v1::GetStatsRequest stats_;
  StoreArguments store_arguments_;
  TransferArguments transfer_;
};

// CLI11 writes to variables; protobuf fields are set through functions.
template <typename Set>
CLI::Option* Text(CLI::App* app, const std::string& names, Set set, const std::string& description,
                  const std::string& type) {
  return app->add_option_function<std::string>(names, set, description)->type_name(type);
}
template <typename Set>
CLI::Option* Flag(CLI::App* app, const std::string& names, Set set, const std::string& description) {
  return app->add_flag_callback(names, set, description);
}

void Parser::AddCommands(absl::string_view command) {
  // In the order in which the help has them.
  static constexpr std::pair<absl::string_view, void (Parser::*)()> kCommands[] = {
      {"run", &Parser::AddRun},         {"stop", &Parser::AddStop},
      {"attach", &Parser::AddAttach},   {"wait", &Parser::AddWait},
      {"logs", &Parser::AddLogs},       {"ckpt", &Parser::AddCkpt},
      {"restore", &Parser::AddRestore}, {"ps", &Parser::AddPs},
      {"ls", &Parser::AddLs},           {"inspect", &Parser::AddInspect},
      {"diff", &Parser::AddDiff},       {"rm", &Parser::AddRm},
      {"tag", &Parser::AddTag},         {"working-set", &Parser::AddWorkingSet},
      {"prune", &Parser::AddPrune},     {"export", &Parser::AddExport},
      {"import", &Parser::AddImport},   {"copy", &Parser::AddCopy},
      {"gc", &Parser::AddGc},           {"fsck", &Parser::AddFsck},
      {"quota", &Parser::AddQuota},     {"stats", &Parser::AddStats},
      {"doctor", &Parser::AddDoctor},   {"version", &Parser::AddVersion},
      {"gpu", &Parser::AddGpu},         {"template", &Parser::AddTemplate},
      {"group", &Parser::AddGroup},     {"fn", &Parser::AddFn},
      {"deps", &Parser::AddDeps},       {"sim", &Parser::AddSim},
      {"top", &Parser::AddTop},
  };
  for (const auto& [name, add] : kCommands) {
    if (name == command) return (this->*add)();
  }
  for (const auto& [name, add] : kCommands) (this->*add)();
}

void Parser::AddRun() {
  CLI::App* run = AddCommand(
      "run", "Start a command as a job that is easy to checkpoint",
      "  rekindle run -- python3 train.py\n"
      "  rekindle run --detach --name web --log /var/log/web.log -- ./server --port 8080\n"
      "  rekindle run --every 5m --restarts 10 --name llm -- python3 train.py\n"
      "  rekindle run --every 5m --name llm --resume --stop-on TERM -- python3 train.py\n"
      "It gets a session of its own and a log for its output; its standard input is /dev/null, or the\n"
      "file that the command's is. Without --detach its output is shown, SIGINT and SIGTERM go to it,\n"
      "and its exit status (128 + signal when one killed it) is returned, also where the daemon is\n"
      "restarted meanwhile. With --every, --restarts or --hang it is supervised: images are taken while\n"
      "it runs, and when it dies it goes on from the last one.\n");
  // For the help alone: the job's words are split off before CLI11 sees them.
  run->add_option("command", run_words_, "The command and its arguments, best after '--'")
      ->type_name("COMMAND...");
  Text(
      run, "--name", [this](const std::string& v) { run_.set_name(v); }, "The job's name", "NAME");
  Text(
      run, "--log", [this](const std::string& v) { run_log_ = v; }, "File for its output", "FILE");
  Flag(
      run, "-d,--detach", [this] { run_.set_detach(true); }, "Return once it runs");
  Flag(
      run, "--hold", [this] { run_.set_hold(true); },
      "The runtime hook holds it at its ready() until an image was taken; with --detach, return then");
  supervision_.AddTo(run);
}

void Parser::AddStop() {
  supervision_.AddToStop(AddCommand("stop", "End jobs, for good where they are supervised",
                                    "  rekindle stop llm eval\n"
                                    "  rekindle stop llm --checkpoint --grace 30s\n"));
}

void Parser::AddAttach() {
  supervision_.AddToAttach(
      AddCommand("attach", "Follow a supervised job as 'run' does",
                 "  rekindle attach llm\n"
                 "Its output is shown from now on, SIGINT and SIGTERM go to it, and its exit\n"
                 "status is returned. A SIGHUP, as of a connection that is lost, lets go of it:\n"
                 "it runs on.\n"));
}

void Parser::AddWait() {
  supervision_.AddToWait(
      AddCommand("wait", "Wait until jobs have ended",
                 "  rekindle wait llm\n"
                 "  rekindle wait prepare train --timeout 2h\n"
                 "Of jobs that all ended with 0 the exit status is 0, else that of the first in the order\n"
                 "given that did not (128 + signal when one killed it; 255 when nobody saw how it ended).\n"
                 "124: they have not ended within --timeout, and run on.\n"));
}

void Parser::AddLogs() {
  supervision_.AddToLogs(AddCommand("logs", "Show what a job has written, also one that has ended",
                                    "  rekindle logs llm --tail 100 --follow\n"
                                    "  rekindle logs 4711\n"));
}

void Parser::AddCkpt() {
  CLI::App* ckpt = AddCommand("ckpt", "Take an image of a running job",
                              "  rekindle ckpt 4711 -t web:v1\n"
                              "  rekindle ckpt train -t train:epoch2 --parent train:epoch1\n"
                              "  rekindle ckpt 4711 -t web:v2 --stop --tcp-established\n"
                              "The job stands still only while its memory is copied to RAM.\n");
  ckpt->add_option("job", ckpt_target_, "PID of the job's root process, or a job's name")
      ->type_name("PID|NAME")
      ->required();
  Text(
      ckpt, "-t,--tag", [this](const std::string& v) { ckpt_.set_reference(v); }, "The image's name",
      "NAME:TAG")
      ->required();
  Text(
      ckpt, "--parent", [this](const std::string& v) { ckpt_.set_parent(v); },
      "Deduplicate against this image [the last of the same job or name]", "IMAGE");
  Flag(
      ckpt, "--no-parent", [this] { ckpt_.set_no_parent(true); }, "Compare with no parent");
  Flag(
      ckpt, "--stop", [this] { ckpt_.set_stop(true); }, "Kill the job once the image is safe");
  Flag(
      ckpt, "--replace", [this] { ckpt_.set_replace(true); }, "Take over a name that exists");
  Flag(
      ckpt, "--tcp-established", [this] { ckpt_.set_tcp_established(true); },
      "Carry live TCP connections [when there are any]");
  Flag(
      ckpt, "--tcp-close", [this] { ckpt_.set_tcp_close(true); },
      "Leave live TCP connections out: they are closed in the restored job");
  ckpt->add_option("--label", ckpt_labels_, "Keep a label with the image; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  ckpt->add_option(
          "--staging-memory", ckpt_memory_,
          "RAM for the copy of the job's memory, such as 2G; more goes to disk [half of what is free]")
      ->type_name("SIZE");
  ckpt->add_option_function<double>(
          "--gpu-lock-timeout", [this](double seconds) { ckpt_.set_gpu_lock_timeout_seconds(seconds); },
          "How long work under way on a GPU may take to end [10]")
      ->type_name("SECONDS")
      ->check(AboveZero());
  ckpt_files_.AddToCheckpoint(ckpt);
}

void Parser::AddRestore() {
  CLI::App* restore =
      AddCommand("restore", "Bring a job back from an image",
                 "  rekindle restore train:epoch1\n"
                 "  rekindle restore web:v1 --detach --pidfile /run/web.pid --log /var/log/web.log\n"
                 "  rekindle restore train:epoch1 --rollback append --dry-run\n"
                 "It gets its own PIDs. Without --detach its output is shown, SIGINT and SIGTERM go\n"
                 "to it, and its exit status is returned. Output that went to a file goes on there; it\n"
                 "is shown where that is the log of a job of 'run', but for clones.\n");
  Text(
      restore, "image", [this](const std::string& v) { restore_.set_image(v); }, "The image", "IMAGE")
      ->required();
  Flag(
      restore, "-d,--detach", [this] { restore_.set_detach(true); }, "Return once it runs");
  Text(
      restore, "--pidfile",
      [this](const std::string& v) { restore_.set_pidfile(Absolute(v, working_directory_)); },
      "Write the PID of the root process here", "FILE");
  Text(
      restore, "--log", [this](const std::string& v) { restore_.set_log(Absolute(v, working_directory_)); },
      "File for its output [where it went before]", "FILE");
  Text(
      restore, "--name", [this](const std::string& v) { restore_.set_name(v); }, "A name for the job",
      "NAME");
  Flag(
      restore, "--tcp-close", [this] { restore_.set_tcp_close(true); }, "Close TCP connections of the image");
  Flag(
      restore, "--ignore-mismatch", [this] { restore_.set_ignore_mismatch(true); },
      "Try although CPU, kernel, CRIU or the GPU's driver are not those of the image");
  restore
      ->add_option("--gpu-map", restore_gpu_map_,
                   "Onto other GPUs of the same model; UUIDs from 'nvidia-smi -L' [the same, or free ones]")
      ->type_name("OLD=NEW,...");
  restore
      ->add_option_function<int32_t>(
          "--into", [this](int32_t pid) { restore_.set_into(pid); },
          "Into the container of this process, with its output and its limits")
      ->type_name("PID")
      ->check(CLI::Range(1, 1 << 22));  // the kernel's own limit
  restore_files_.AddToRestore(restore);
  clone_.AddTo(restore);
  AddTimelineOptions(restore, &timeline_);
}

void Parser::AddPs() {
  CLI::App* ps = AddCommand("ps", "List jobs", "  rekindle ps\n  rekindle ps --all\n");
  Flag(
      ps, "-a,--all", [this] { ps_.set_all(true); }, "Those that have ended within a day too");
}

void Parser::AddLs() {
  transfer_.AddToLs(AddCommand("ls", "List images, here or at a place that 'copy' copies to",
                               "  rekindle ls\n"
                               "  rekindle ls train\n"
                               "  rekindle ls --from rclone:s3:bucket/images train\n"
                               "  rekindle ls --from /mnt/shared/rekindle\n"));
}

void Parser::AddInspect() {
  CLI::App* inspect = AddCommand("inspect", "Show one image", "  rekindle inspect web:v1 --objects\n");
  Text(
      inspect, "image", [this](const std::string& v) { inspect_.set_image(v); }, "The image", "IMAGE")
      ->required();
  Flag(
      inspect, "--objects", [this] { inspect_.set_objects(true); }, "List its objects too");
}

void Parser::AddDiff() {
  CLI::App* diff = AddCommand("diff", "Compare the memory of two images, area by area",
                              "  rekindle diff train:epoch1 train:epoch2\n");
  Text(
      diff, "a", [this](const std::string& v) { diff_.set_a(v); }, "One image", "A")
      ->required();
  Text(
      diff, "b", [this](const std::string& v) { diff_.set_b(v); }, "The other", "B")
      ->required();
}

void Parser::AddRm() {
  CLI::App* rm = AddCommand("rm", "Remove images; 'gc' frees their space",
                            "  rekindle rm web:v1 web:v2\n"
                            "  rekindle rm train:7 --from rclone:s3:bucket/images\n");
  rm->add_option("images", remove_images_, "The images")->type_name("IMAGE")->required();
  rm->add_option(
        "--from", remove_from_,
        "Copies elsewhere: at another daemon, in the folder of a store, or in an object store, where "
        "what others build upon stays")
      ->type_name(kPlaces);
}

void Parser::AddTag() {
  CLI::App* tag =
      AddCommand("tag", "Give an image a second name, which shares its data",
                 "  rekindle tag llm best:1\n"
                 "  rekindle tag train:7 train:release --label approved=yes\n"
                 "Either name can be removed, and the other one's image stays whole. It is as young as\n"
                 "the tag. What the daemon says of an image, as of a group's or a supervised job's, it\n"
                 "does not say of the second name: that is nobody's to remove but yours.\n");
  Text(
      tag, "image", [this](const std::string& v) { tag_.set_image(v); }, "The image", "IMAGE")
      ->required();
  Text(
      tag, "name", [this](const std::string& v) { tag_.set_reference(v); }, "Its second name", "NAME:TAG")
      ->required();
  tag->add_option("--label", tag_labels_, "Keep a label with it, beside those of the image; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  Flag(
      tag, "--replace", [this] { tag_.set_replace(true); }, "Take over a name that exists");
}

void Parser::AddWorkingSet() {
  CLI::App* working_set = AddCommand("working-set", "What was recorded of the memory that clones touch first",
                                     "  rekindle working-set drop web:v1\n'inspect' shows it.\n");
  working_set->require_subcommand(1);
  CLI::App* drop = working_set->add_subcommand("drop", "Forget it: the next clones of the image record anew");
  drop->fallthrough();
  drop->footer("Examples:\n  rekindle working-set drop web:v1\n");
  Text(
      drop, "image", [this](const std::string& v) { drop_.set_image(v); }, "The image", "IMAGE")
      ->required();
}

void Parser::AddPrune() {
  store_arguments_.AddToPrune(AddCommand(
      "prune", "Remove images that no rule keeps",
      "  rekindle prune train --keep-last 3\n"
      "  rekindle prune --all --keep-last 1 --keep-within 7d --keep-label keep=yes --dry-run\n"
      "  rekindle prune --all --keep-within 2d --keep-daily 14 --keep-weekly 8 --keep-monthly 12 --gc\n"
      "  rekindle prune train --keep-last 3 --from rclone:s3:bucket/images\n"
      "An image is kept when any rule keeps it; --keep-last counts for each name by itself. One that was\n"
      "copied or imported is as young as its arrival in this store.\n"));
}

void Parser::AddGc() {
  store_arguments_.AddToGc(AddCommand("gc", "Free what no image reaches", "  rekindle gc --dry-run\n"));
}

void Parser::AddFsck() {
  store_arguments_.AddToFsck(AddCommand("fsck", "Check the store",
                                        "  rekindle fsck --read\n  rekindle fsck --repair\n"
                                        "  rekindle fsck --read train --from rclone:s3:bucket/images\n"));
}

void Parser::AddQuota() {
  store_arguments_.AddToQuota(AddCommand("quota", "Show or set the limits of the store",
                                         "  rekindle quota\n"
                                         "  rekindle quota --owner alice --max 50G\n"
                                         "  rekindle quota --store-max 2T --high-water 90%\n"
                                         "  rekindle quota --owner 1000 --max none\n"
                                         "Without options the limits and what is used of them are shown.\n"));
}

void Parser::AddExport() {
  transfer_.AddToExport(
      AddCommand("export", "Write an image to a file, or as a CRIU image directory",
                 "  rekindle export train:7 --file /backup/train-7.rekindle\n"
                 "  rekindle export train:8 --since train:7 --file - | aws s3 cp - s3://bucket/train-8\n"
                 "  rekindle export web:v1 --criu /tmp/web && criu restore -d -D /tmp/web\n"));
}

void Parser::AddImport() {
  transfer_.AddToImport(AddCommand(
      "import", "Take in what 'export' wrote, or a CRIU image directory",
      "  rekindle import --file /backup/train-7.rekindle\n"
      "  ssh node1 rekindle export web:v1 --file - | rekindle import --file - -t web:v1\n"
      "  rekindle import --criu /tmp/web -t web:v1\n"
      "Whoever writes an image decides what runs when it is restored: take in only what you trust.\n"));
}

void Parser::AddCopy() {
  transfer_.AddToCopy(AddCommand(
      "copy", "Copy an image to or from another store or an object store; only what is missing is sent",
      "  rekindle copy train:7 --to /mnt/shared/rekindle\n"
      "  rekindle copy train:7 --to node2:7443 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key\n"
      "  rekindle copy train --follow --keep 2 --to rclone:s3:bucket/images\n"
      "  rekindle copy train --from rclone:s3:bucket/images\n"
      "With --follow the newest image of that name is copied, and each newer one as it comes: when the\n"
      "machine is lost, its jobs go on from there.\n"));
}

absl::Status Parser::Finish(const std::vector<std::string>& job,
                            const std::vector<std::string>& environment) {
  const std::string name = app_.get_subcommands().front()->get_name();
  const bool tls = !globals_.tls_ca.empty() || !globals_.tls_certificate.empty() || !globals_.tls_key.empty();
  if (name == "run") {
    if (job.empty() && !supervision_.GoesOnFromImage())
      return absl::InvalidArgumentError("no command was given: write it after '--'");
    for (const std::string& word : job) run_.add_argv(word);
    for (const std::string& variable : environment) run_.add_environment(variable);
    run_.set_working_directory(working_directory_);
    run_.set_log(Absolute(run_log_, working_directory_));
    RK_RETURN_IF_ERROR(supervision_.Apply(globals_, working_directory_, &run_));
    RK_ASSIGN_OR_RETURN(run_options_, supervision_.OptionsOfRun());
    command_ = run_;
  } else if (name == "stop") {
    RK_ASSIGN_OR_RETURN(command_, supervision_.StopRequest());
  } else if (name == "attach") {
    command_ = supervision_.AttachRequest();
  } else if (name == "wait") {
    RK_ASSIGN_OR_RETURN(command_, supervision_.WaitRequest());
  } else if (name == "logs") {
    if (globals_.json) {
      return absl::InvalidArgumentError(
          "'logs' shows what a job wrote as it is: leave --json out; 'ps --all --json' says where it lies");
    }
    command_ = supervision_.LogsRequest();
  } else if (name == "ckpt") {
    RK_ASSIGN_OR_RETURN(const JobName job_name, ParseJobName(ckpt_target_));
    ckpt_.set_pid(job_name.pid);
    ckpt_.set_job(job_name.name);
    if (!ckpt_memory_.empty()) {
      absl::StatusOr<uint64_t> bytes = ParseBytes(ckpt_memory_);
      if (!bytes.ok()) return bytes.status();
      ckpt_.set_staging_budget_bytes(*bytes);
    }
    for (const std::string& text : ckpt_labels_) {
      RK_ASSIGN_OR_RETURN(v1::Label label, ParseLabel(text, "--label"));
      (*ckpt_.mutable_labels())[label.key()] = label.value();
    }
    ckpt_files_.Apply(working_directory_, &ckpt_);
    command_ = ckpt_;
  } else if (name == "restore") {
    if (!restore_gpu_map_.empty()) {
      RK_RETURN_IF_ERROR(ParseGpuMap(restore_gpu_map_, restore_.mutable_gpu_map()));
    }
    RK_RETURN_IF_ERROR(clone_.Apply(&restore_));
    RK_RETURN_IF_ERROR(restore_files_.Apply(working_directory_, &restore_));
    command_ = restore_;
  } else if (name == "gpu") {
    RK_ASSIGN_OR_RETURN(command_, gpu_.Finish());
  } else if (name == "template") {
    RK_ASSIGN_OR_RETURN(command_, template_.Finish());
  } else if (name == "group") {
    RK_ASSIGN_OR_RETURN(command_, group_.Finish(working_directory_));
  } else if (name == "fn" || name == "deps") {
    RK_ASSIGN_OR_RETURN(command_, function_.Finish(working_directory_));
    of_functions_ = true;
  } else if (name == "sim") {
    RK_ASSIGN_OR_RETURN(command_, sim_.Finish());
  } else if (name == "top") {
    command_ = top_.request();
  } else if (name == "ps") {
    command_ = ps_;
  } else if (name == "inspect") {
    command_ = inspect_;
  } else if (name == "diff") {
    command_ = diff_;
  } else if (name == "rm") {
    for (const std::string& image : remove_images_) remove_.add_images(image);
    command_ = remove_;
    if (!remove_from_.empty()) {
      RK_ASSIGN_OR_RETURN(command_, RemovalFrom(remove_, remove_from_, tls, working_directory_));
    }
  } else if (name == "tag") {
    for (const std::string& text : tag_labels_) {
      RK_ASSIGN_OR_RETURN(v1::Label label, ParseLabel(text, "--label"));
      (*tag_.mutable_labels())[label.key()] = label.value();
    }
    command_ = tag_;
  } else if (name == "working-set") {
    command_ = drop_;
  } else if (name == "prune" || name == "gc" || name == "fsck" || name == "quota") {
    RK_ASSIGN_OR_RETURN(command_, store_arguments_.Finish(name, tls, working_directory_));
  } else if (name == "export" || name == "import" || name == "copy" || name == "ls") {
    RK_ASSIGN_OR_RETURN(command_, transfer_.Finish(name, tls, working_directory_));
  } else if (name == "stats") {
    command_ = stats_;
  } else if (name == "doctor") {
    command_ = doctor_;
  } else {
    version_.set_find_criu(globals_.verbose);
    command_ = version_;
  }
  return absl::OkStatus();
}

}  // namespace

ParsedArguments ParseArguments(const std::vector<std::string>& arguments,
                               const std::string& working_directory,
                               const std::vector<std::string>& environment) {
  const auto [ours, job] = SplitJobCommand(InOurWords(arguments));
  const size_t command = LeadingOptions(ours).end;
  return Parser(working_directory, command < ours.size() ? ours[command] : "").Parse(ours, job, environment);
}

}  // namespace rekindle::cli
