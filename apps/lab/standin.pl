#!@PERL@
# No modules: loading Socket.pm would take longer than everything else here. On Linux AF_UNIX and SOCK_STREAM are 1.
my ($name) = $0 =~ m{([^/]+)$};
my $door = '@DOOR@';
socket(my $s, 1, 1, 0) or exit 126;
unless (connect($s, pack('Sa108', 1, $door))) { print STDERR "$name: cannot execute: Input/output error\n"; exit 126; }
my $cwd = readlink("/proc/self/cwd"); $cwd = '/' unless defined $cwd;
my $body = pack('(N/a*)*', $$, $cwd, scalar(@ARGV) + 1, $name, @ARGV, map { "$_=$ENV{$_}" } keys %ENV);
sub put { my ($to, $data) = @_; my $o = 0; while ($o < length $data) { my $n = syswrite($to, $data, length($data) - $o, $o); exit 141 unless defined $n; $o += $n; } }
put($s, pack('N', length $body) . $body);
my ($buf, $want) = ('', 0);
while (1) {
  my $r = ''; vec($r, fileno($s), 1) = 1; vec($r, 0, 1) = 1 if $want;
  select($r, undef, undef, undef) if $want;
  if ($want && vec($r, 0, 1)) {
    my $n = sysread(STDIN, my $d, 65536); $n = 0 unless defined $n;
    put($s, pack('N', $n) . ($n ? $d : '')); $want = 0 unless $n;
    next unless vec($r, fileno($s), 1);
  }
  next if $want && !vec($r, fileno($s), 1);
  my $n = sysread($s, my $d, 65536);
  exit 137 unless $n;
  $buf .= $d;
  while (length $buf >= 5) {
    my ($t, $l) = unpack('aN', $buf); last if length $buf < 5 + $l;
    my $p = substr($buf, 5, $l); $buf = substr($buf, 5 + $l);
    if ($t eq 'O') { put(\*STDOUT, $p) } elsif ($t eq 'E') { put(\*STDERR, $p) }
    elsif ($t eq 'I') { $want = 1 }
    elsif ($t eq 'Q') { exit unpack('N', $p) }
    elsif ($t eq 'X') {
      my @all = unpack('(N/a*)*', $p); my $c = shift @all; my @argv = splice(@all, 0, $c);
      %ENV = map { split(/=/, $_, 2) } @all;
      my $path = shift @argv; exec { $path } @argv; print STDERR "$path: $!\n"; exit 127;
    }
  }
}
