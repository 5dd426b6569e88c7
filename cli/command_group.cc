#include "cli/command_group.h"

namespace rekindle::cli {

CLI::App* AddCommand(CLI::App& above, const std::string& name, const std::string& description,
                     const std::string& examples) {
  CLI::App* command = above.add_subcommand(name, description);
  command->fallthrough();
  command->footer("Examples:\n" + examples);
  return command;
}

CLI::App* AddCommandGroup(CLI::App& app, const std::string& name, const std::string& description,
                          const std::string& examples) {
  CLI::App* group = AddCommand(app, name, description, examples);
  group->require_subcommand(1);
  return group;
}

}  // namespace rekindle::cli
