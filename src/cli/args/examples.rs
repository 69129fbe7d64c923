//! Examples below the help of commands. A test parses each.

pub(crate) const APPLY: &str = "\
Examples:
  katcall apply web/ --wait
  katcall apply shop/ --prune -l app=shop
  katcall export web | katcall apply -f -";
pub(crate) const CP: &str = "\
Examples:
  katcall cp web-inrc2:/var/log/app.log ./
  katcall cp conf/ web-inrc2:/tmp/";
pub(crate) const DELETE: &str = "\
Examples:
  katcall delete workload web --wait
  katcall delete volume/db/data
  katcall delete namespace webshop --cascade";
pub(crate) const DRAIN: &str = "\
Examples:
  katcall drain n2
  katcall uncordon n2";
pub(crate) const EXEC: &str = "\
Examples:
  katcall exec -it web -- sh
  katcall exec web-inrc2 -- ls /tmp";
pub(crate) const EXPLAIN: &str = "\
Examples:
  katcall explain workload.spec.ports
  katcall explain workload --recursive
  katcall explain --search volume
  katcall explain CrashLoop";
pub(crate) const EXPORT: &str = "\
Examples:
  katcall export web -o web/
  katcall export web | katcall apply -f -";
pub(crate) const GET: &str = "\
Examples:
  katcall get all
  katcall get instances -A -o wide
  katcall get workload web -o yaml
  katcall get workloads -l team=shop -o name | xargs katcall restart";
pub(crate) const LABEL: &str = "\
Example:
  katcall label node n2 disk=ssd other-";
pub(crate) const LOGS: &str = "\
Examples:
  katcall logs web -f
  katcall logs web --since 10m --tail 20
  katcall logs web --gone";
pub(crate) const NEW: &str = "\
Example:
  katcall new web web/ --image registry.example/web:1 -p 8080";
pub(crate) const PLAN: &str = "\
Examples:
  katcall plan web/
  katcall plan web/ --units";
pub(crate) const PORT_FORWARD: &str = "\
Example:
  katcall port-forward web 8081:8080";
pub(crate) const ROLLBACK: &str = "\
Examples:
  katcall rollback web --wait
  katcall rollback web --to 3";
pub(crate) const RUN: &str = "\
Examples:
  katcall run registry.example/web:1 -p 80:8080 --save web/ --wait
  katcall run registry.example/db:1 -v data:/data -e LEVEL=info
  katcall run registry.example/tool:1 --job --wait -- check --all";
pub(crate) const SCALE: &str = "\
Examples:
  katcall scale web --replicas 4 --wait
  katcall scale -l team=shop --replicas 2";
pub(crate) const SECRET_SET: &str = "\
Example:
  printf %s \"$PASSWORD\" | katcall secret set db --from-file PASSWORD=-";
pub(crate) const SET_IMAGE: &str = "\
Example:
  katcall set image web=registry.example/web:2 --wait";
pub(crate) const TAINT: &str = "\
Example:
  katcall taint node n2 dedicated=db:NoSchedule";
pub(crate) const TOKEN_CREATE: &str = "\
Examples:
  katcall token create --join
  katcall token create --scope deploy:webshop --name ci -o connection > ci.conf";
pub(crate) const WAIT: &str = "\
Examples:
  katcall wait workload/web --for=phase=Running
  katcall wait workload/web --for=delete --timeout 1m";
pub(crate) const WHY: &str = "\
Examples:
  katcall why web
  katcall why node/n2";

#[cfg(test)]
mod tests {
    use clap::{Command, Parser};

    use crate::args::{KatcallArgs, command};

    fn collect(command: &Command, path: &str, found: &mut Vec<(String, String)>) {
        for one in command.get_subcommands() {
            let path = format!("{path} {}", one.get_name());
            if let Some(text) = one.get_after_help() {
                found.push((path.clone(), text.to_string()));
            }
            collect(one, &path, found);
        }
    }

    #[test]
    fn katcall_accepts_the_examples_below_the_help_of_its_commands() {
        let mut found = Vec::new();
        collect(&command(), "katcall", &mut found);
        assert!(found.len() >= 20, "{found:?}");
        for (path, text) in found {
            let mut of_command = 0;
            for line in text.lines().filter(|line| line.starts_with("  ")) {
                assert!(line.chars().count() <= 80, "{line}");
                let parts = line.split(" | ").map(str::trim);
                for part in parts.filter(|part| part.starts_with("katcall ")) {
                    let part = part.split(" > ").next().unwrap_or(part);
                    let parsed = KatcallArgs::try_parse_from(part.split(' '));
                    assert!(parsed.is_ok(), "{part}: {:?}", parsed.err());
                    of_command += usize::from(part.starts_with(&format!("{path} ")));
                }
            }
            assert!(of_command > 0, "{path}: {text}");
        }
    }
}
