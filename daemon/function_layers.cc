#include "daemon/function_layers.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/code_room.h"
#include "daemon/function_runtime.h"
#include "daemon/functions.h"
#include "daemon/owner_program.h"
#include "functions/compiled_modules.h"
#include "functions/layer_folder.h"
#include "functions/layer_store.h"
#include "restore/own_temporary.h"

namespace rekindle::daemon {
namespace {

constexpr absl::Duration kLongestCompiling = absl::Minutes(5);
constexpr char kCompilers[] = "2";  // processes
constexpr char kCompiledFolder[] = "/tmp/compiled";
constexpr uint64_t kCompilersMemory = uint64_t{1} << 30;
constexpr uint64_t kCompilersOutput = uint64_t{16} << 10;

// Of folders with packages for Python in a layer.
std::vector<std::string> PackageFolders(const std::string& layer) {
  const std::string python = absl::StrCat(layer, "/python"), libraries = absl::StrCat(python, "/lib");
  std::vector<std::string> folders = {python};
  auto versions = ListDirectory(libraries);
  for (const std::string& version : versions.ok() ? *versions : std::vector<std::string>()) {
    if (absl::StartsWith(version, "python"))
      folders.push_back(absl::StrCat(libraries, "/", version, "/site-packages"));
  }
  return folders;
}

// The names under which Python imports what lies in a folder.
void AddImportedNames(const std::string& folder, std::set<std::string>* names) {
  auto entries = ListDirectory(folder);
  for (const std::string& entry : entries.ok() ? *entries : std::vector<std::string>()) {
    const size_t dot = entry.find('.');
    // numpy, six.py, _speedups.cpython-311-x86_64-linux-gnu.so; not six-1.16.0.dist-info.
    if (dot == std::string::npos || absl::EndsWith(entry, ".py") || absl::EndsWith(entry, ".so"))
      names->insert(entry.substr(0, dot));
  }
}

std::string Outermost(const std::string& module) { return module.substr(0, module.find('.')); }

// "@scope/name" or "name" of what require() is given.
std::string NodePackage(const std::string& module) {
  size_t end = module.find('/');
  if (absl::StartsWith(module, "@") && end != std::string::npos) end = module.find('/', end + 1);
  return module.substr(0, end);
}

bool HasNodePackage(const std::string& layer, const std::string& package) {
  const std::string folder = absl::StrCat(layer, "/nodejs");
  auto entries = ListDirectory(folder);
  std::vector<std::string> places = {"node_modules"};
  for (const std::string& entry : entries.ok() ? *entries : std::vector<std::string>()) {
    if (entry != "node_modules" && absl::StartsWith(entry, "node"))
      places.push_back(absl::StrCat(entry, "/node_modules"));
  }
  return std::any_of(places.begin(), places.end(), [&](const std::string& place) {
    return PathExists(absl::StrCat(folder, "/", place, "/", package));
  });
}

// Of an image with modules of layers that could not be made: it is not these modules that are in the way.
bool MayPass(const absl::Status& why) {
  return !absl::IsInvalidArgument(why) && !absl::IsFailedPrecondition(why) && !absl::IsUnimplemented(why) &&
         !absl::IsPermissionDenied(why);
}

}  // namespace

bool CanNotLoadOneOf(const std::vector<std::string>& modules, const absl::Status& status) {
  return absl::IsInvalidArgument(status) &&
         std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
           return absl::StrContains(status.message(),
                                    absl::StrCat("the dependency ", module, " (REKINDLE_DEPS) can't be "));
         });
}

std::vector<std::string> ModulesOfLayers(const functions::Runtime& runtime, const Owner& owner,
                                         const std::vector<std::string>& layers,
                                         const std::vector<std::string>& modules) {
  std::vector<std::string> found;
  if (modules.empty()) return found;
  const auto look = [&]() -> absl::Status {
    if (runtime.kind == functions::RuntimeKind::kNode) {
      std::copy_if(modules.begin(), modules.end(), std::back_inserter(found), [&](const std::string& module) {
        return std::any_of(layers.begin(), layers.end(), [&](const std::string& layer) {
          return HasNodePackage(layer, NodePackage(module));
        });
      });
      return absl::OkStatus();
    }
    std::set<std::string> names;
    for (const std::string& layer : layers) {
      for (const std::string& folder : PackageFolders(layer)) AddImportedNames(folder, &names);
    }
    std::copy_if(modules.begin(), modules.end(), std::back_inserter(found),
                 [&](const std::string& module) { return names.contains(Outermost(module)); });
    return absl::OkStatus();
  };
  if (const absl::Status looked = WithFileRightsOf(owner, look); !looked.ok())
    Log(LogLevel::kWarning,
        absl::StrCat("what layers of uid ", owner.uid, " have is not known: ", looked.message()));
  return found;
}

functions::FunctionImages WithNotLoaded(functions::FunctionImages images) {
  for (const std::string& module : std::exchange(images.not_loaded, {})) {
    images.dependencies.push_back(module);
    images.of_layers.push_back(module);
  }
  for (std::vector<std::string>* modules : {&images.dependencies, &images.of_layers}) {
    std::sort(modules->begin(), modules->end());
    modules->erase(std::unique(modules->begin(), modules->end()), modules->end());
  }
  return images;
}

void Functions::RemoveAllUnusedLayerImages() {
  const auto images = dependencies_.List();
  if (!images.ok()) return;
  std::set<uid_t> owners;
  for (const DependencyImage& image : *images) {
    if (!image.is_shared()) owners.insert(image.info.owner);
  }
  for (const uid_t owner : owners) with_layers_.TidyUnlessAtWork(owner);
}

void Functions::RemoveUnusedLayerImages(uid_t owner) {
  auto images = dependencies_.List();
  if (!images.ok()) return;
  std::erase_if(*images, [&](const DependencyImage& image) {
    return image.is_shared() || image.kept || image.info.owner != owner;
  });
  if (images->empty() || !catalog_->HasItsFolder()) return;
  std::set<std::string> used;
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (!record.trouble.ok()) return;  // nobody knows which it uses
    used.insert(record.images.dependency_image);
  }
  for (const DependencyImage& image : *images) {
    if (used.contains(image.info.reference)) continue;
    const absl::Status removed = RemoveDependencies(image.info);
    Log(LogLevel::kInfo,
        absl::StrCat("dependency image '", image.info.reference, "', which no function uses any more: ",
                     removed.ok() ? "removed" : std::string(removed.message())));
  }
}

void Functions::TidyLayersNowAndThen() {
  constexpr absl::Duration kEvery = absl::Seconds(1), kAtLeastEvery = absl::Minutes(1);
  TidyLayers();  // of what a killed daemon has left
  for (Stopwatch since; !ending_; tidier_ends_.WaitFor(kEvery)) {
    // Images may have been removed by others, too.
    if (!catalog_->layers().TakeAnyGone() && absl::Seconds(since.seconds()) < kAtLeastEvery) continue;
    TidyLayers();
    since.Restart();
  }
}

void Functions::TidyLayers() {
  catalog_->layers().Tidy([this]() -> absl::StatusOr<std::set<functions::LayerKey>> {
    if (!catalog_->HasItsFolder()) return absl::UnavailableError("nobody knows whose layers they are");
    std::set<functions::LayerKey> wanted;
    for (const functions::FunctionRecord& record : catalog_->List()) {
      if (!record.trouble.ok()) return absl::UnavailableError("nobody knows which layers it has");
      for (const std::string& digest : record.layers) wanted.insert({record.owner.uid, digest});
    }
    RK_ASSIGN_OR_RETURN(const std::vector<DependencyImage> images, dependencies_.List());
    for (const DependencyImage& image : images) {
      for (const std::string& digest : image.layers) wanted.insert({image.info.owner, digest});
    }
    return wanted;
  });
}

functions::PrepareLayer Functions::CompileLayers(
    const functions::Runtime& runtime, const Owner& owner,
    const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel) {
  if (runtime.kind != functions::RuntimeKind::kPython) return nullptr;
  return [this, &runtime, &owner, &progress, cancel](const std::string& staged,
                                                     const std::string& path) -> absl::Status {
    OwnerProgram program;
    program.name = "compile";
    program.working_directory = absl::StrCat(staged, "/python");
    if (!PathExists(program.working_directory)) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(program.command, RuntimeCommand(runtime, ""));
    RK_ASSIGN_OR_RETURN(std::string compiler, FindRuntimeFile("python/compile_layer.py"));
    // Its owner's processes can do all that it can: it writes into nothing that the layer has.
    program.results = kCompiledFolder;
    program.command.resize(1);
    program.command.insert(program.command.end(),
                           {"-I", std::move(compiler), program.working_directory,
                            absl::StrCat(path, "/python"), program.results, kCompilers});
    program.environment = BaseEnvironment();
    program.owner = owner;
    program.temporary = TemporaryOn(node_.options(), restore::kMostTemporary);
    // Nobody's share of the machine: the turns bound it.
    const auto given_up = [cancel] { return cancel != nullptr && cancel->cancelled(); };
    const auto turn = compilers_.TakeUnless(owner.uid, given_up);
    if (!turn) return absl::CancelledError("compiling the modules of a layer: cancelled");
    functions::FunctionSpec most;
    most.memory_bytes = kCompilersMemory;
    program.limits = FunctionInstances::LimitsOf(most);
    program.longest = kLongestCompiling;
    program.most_output = kCompilersOutput;
    progress("compile", 0);
    const absl::StatusOr<OwnerProgramEnd> end = RunOwnerProgram(node_, program, cancel);
    if (absl::IsCancelled(end.status())) return Annotate(end.status(), "compiling the modules of a layer");
    // There may be files that are no Python of this version: all others are compiled.
    constexpr int kSomeDoNotCompile = 1;
    std::string trouble;
    if (!end.ok()) {
      trouble = std::string(end.status().message());
    } else if (end->late) {
      trouble = absl::StrCat("that took more than ", absl::FormatDuration(kLongestCompiling));
    } else if (!end->exit || end->exit->signal != 0 || end->exit->code > kSomeDoNotCompile) {
      trouble = absl::StrCat("the compiler ended with ",
                             end->exit ? end->exit->ToString() : "a status that is not known");
    }
    if (end.ok() && end->results.valid()) {
      const absl::Status added = functions::AddCompiledModules(end->results.get(), program.working_directory,
                                                               restore::kMostTemporary);
      if (!added.ok()) trouble = std::string(added.message());
    }
    if (!trouble.empty()) {
      Log(LogLevel::kWarning,
          absl::StrCat("not all modules of the layer ", path,
                       " are compiled, and each start compiles those that it imports: ", trouble));
    }
    return absl::OkStatus();
  };
}

absl::StatusOr<DependencyImages::Found> Functions::CoverFor(
    const functions::FunctionRecord& record, functions::FunctionImages* images,
    const std::function<void(const char* phase)>& progress, const Cancellation* cancel,
    std::vector<std::string>* warnings) {
  const functions::Runtime& runtime = record.spec.runtime;
  OwnersLayers layers{record.owner, record.folder->layers(), images->of_layers};
  images->not_loaded.clear();
  absl::Status why;
  if (!layers.layers.empty() && !layers.modules.empty()) {
    auto covered = dependencies_.CoverWithLayers(runtime, images->dependencies, layers, progress, cancel);
    if (covered.ok() || absl::IsCancelled(covered.status())) return covered;
    why = covered.status();
  }
  const std::vector<std::string> of_layers = std::exchange(images->of_layers, {});
  const std::vector<std::string> all = images->dependencies;
  std::erase_if(images->dependencies, [&](const std::string& module) {
    return std::find(of_layers.begin(), of_layers.end(), module) != of_layers.end();
  });
  if (!why.ok()) {
    if (MayPass(why)) {
      images->not_loaded = of_layers;
      NoteWhyNot(record, why.message());
    }
    warnings->push_back(
        absl::StrCat("what it needs of its layers (", absl::StrJoin(of_layers, ", "),
                     ") is not loaded ahead, and each function loads its own",
                     MayPass(why) ? ", until that can be done, which is tried again in the background" : "",
                     ": ", why.message()));
  }
  auto covered = dependencies_.Cover(runtime, images->dependencies, record.owner.uid, progress, cancel);
  // One that is found by a .pth file.
  if (why.ok() && !layers.layers.empty() && runtime.kind == functions::RuntimeKind::kPython &&
      CanNotLoadOneOf(all, covered.status())) {
    layers.modules = all;
    auto with_layers = dependencies_.CoverWithLayers(runtime, all, layers, progress, cancel);
    if (absl::IsCancelled(with_layers.status())) return with_layers;
    if (with_layers.ok()) {
      images->dependencies = images->of_layers = all;
      return with_layers;
    }
  }
  return covered;
}

absl::Status Functions::RenewWithLayers(const DependencyImage& image, const Cancellation& cancel) {
  const OwnersAtWork::Work work(with_layers_, image.info.owner);
  for (const functions::FunctionRecord& record : catalog_->List()) {
    if (!record.trouble.ok() || !image.MayBeUsedBy(record.owner) || record.layers != image.layers ||
        record.images.dependency_image != image.info.reference) {
      continue;
    }
    const OwnersLayers layers{record.owner, record.folder->layers(), image.of_layers};
    return dependencies_
        .BuildWithLayers(
            image.runtime, image.modules, layers, /*rebuild=*/true, image.kept, [](const char* /*phase*/) {},
            &cancel)
        .status();
  }
  return absl::NotFoundError("no function uses it any more");
}

absl::StatusOr<DependencyImages::Found> Functions::BuildDependencies(
    const Caller& caller, const functions::Runtime& runtime, const std::vector<std::string>& modules,
    const functions::LayerNames& names, bool rebuild,
    const std::function<void(const char* phase, uint64_t bytes)>& progress, const Cancellation* cancel) {
  const auto phase = [&progress](const char* name) { progress(name, 0); };
  std::vector<std::string> folders = names.layers;
  if (!names.venv.empty()) folders.push_back(names.venv);
  if (folders.empty()) return dependencies_.Build(runtime, modules, rebuild, caller.uid, phase, cancel);
  if (caller.kind == Caller::Kind::kRemote && !caller.admin_certificate) {
    return absl::PermissionDeniedError(
        "images with modules of layers are built on the node itself, or with an administrator's certificate: "
        "layers are folders of the node");
  }
  RK_ASSIGN_OR_RETURN(const std::string python, PythonVersion(runtime));
  const OwnersAtWork::Work work(with_layers_, caller.uid);
  OwnersLayers layers{{caller.uid, caller.gid, caller.groups}, {}, {}};
  progress("copy", 0);
  RK_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store, node_.OpenStore(Node::Access::kRead));
  const functions::PrepareLayer compile = CompileLayers(runtime, layers.owner, progress, cancel);
  for (size_t i = 0; i < folders.size(); ++i) {
    RK_ASSIGN_OR_RETURN(const CodeRoom room,
                        CodeRoom::Of(*store, node_.options().store, catalog_->List(), catalog_->ledger(),
                                     catalog_->layers().Sizes(), /*function=*/"", caller.uid));
    const auto charge = catalog_->ledger()->Begin(caller.uid);
    functions::LayerFolder folder;
    const absl::Status found = WithFileRightsOf(layers.owner, [&]() -> absl::Status {
      RK_ASSIGN_OR_RETURN(folder,
                          functions::FindLayerFolder(folders[i], runtime, python, i >= names.layers.size()));
      return absl::OkStatus();
    });
    RK_RETURN_IF_ERROR(found);
    functions::CodeCopyOptions options;
    options.progress = [&progress](uint64_t bytes) { progress("copy", bytes); };
    options.may_take = [&room, &charge](uint64_t bytes) {
      charge->Set(bytes);
      return room.Check(bytes, /*all=*/false);
    };
    options.cancelled = cancel != nullptr ? &cancel->cancelled() : nullptr;
    RK_ASSIGN_OR_RETURN(functions::LayerPtr layer,
                        catalog_->layers().Bring(folder, layers.owner, options, compile));
    layers.layers.push_back(std::move(layer));
  }
  std::vector<std::string> paths;
  for (const functions::LayerPtr& layer : layers.layers) paths.push_back(layer->path());
  layers.modules = ModulesOfLayers(runtime, layers.owner, paths, modules);
  if (layers.modules.empty()) {
    auto built = dependencies_.Build(runtime, modules, rebuild, caller.uid, phase, cancel);
    if (!CanNotLoadOneOf(modules, built.status()) || runtime.kind != functions::RuntimeKind::kPython)
      return built;
    layers.modules = modules;  // they are found by .pth files
  }
  return dependencies_.BuildWithLayers(runtime, modules, layers, rebuild, /*kept=*/true, phase, cancel);
}

}  // namespace rekindle::daemon
